"""The kernels of `ondevice/native`, called straight from numpy arrays: the structs of kernels.h as ctypes sees them."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_char_p, c_float, c_int64, c_void_p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ondevice.native.build import SOURCE_FOLDER, build_library

FloatArray = npt.NDArray[np.float32]
ACTIVATIONS = ("none", "relu", "hardswish", "hardsigmoid")


class Shape(ctypes.Structure):
    _fields_ = tuple((name, c_int64) for name in ("channels", "batch", "height", "width"))


class Window(ctypes.Structure):
    _fields_ = tuple((name, c_int64) for name in ("kernel", "stride", "padding"))


class Matrix(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("row_stride", c_int64), ("column_stride", c_int64))


class Product(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "columns", "depth")),
        *((name, Matrix) for name in ("a", "b", "start")),
        ("out", c_void_p),
        ("out_row_stride", c_int64),
        ("out_column_stride", c_int64),
    )


class Value(ctypes.Structure):
    _fields_ = (
        ("x", c_void_p),
        ("shape", Shape),
        *((name, c_void_p) for name in ("moments", "gamma", "beta")),
        ("groups", c_int64),
        ("activation", c_int64),
    )


class PlaneGradient(ctypes.Structure):
    _fields_ = tuple((name, c_void_p) for name in ("planes", "scale", "shift"))


STRUCTS: tuple[type[ctypes.Structure], ...] = (Shape, Window, Matrix, Product, Value, PlaneGradient)
"""Those of kernels.h; test_declarations.py compares their fields."""
CType = type[Any]
_TYPES: dict[str, CType] = {
    **dict.fromkeys(("const float*", "float*", "const uint8_t*"), c_void_p),
    **dict.fromkeys(("int64_t", "Activation"), c_int64),
    "float": c_float,
    **{struct.__name__: struct for struct in STRUCTS},
    **{f"const {struct.__name__}&": POINTER(struct) for struct in STRUCTS},
}


class Signature(NamedTuple):
    returns: CType | None
    name: str
    parameters: tuple[CType, ...]


def kernel_signatures() -> list[Signature]:
    """The kernels of kernel_list.h, in the order in which they stand in the table."""
    listed = re.sub(r"//.*", "", (SOURCE_FOLDER / "kernels/kernel_list.h").read_text())
    signatures = []
    for kernel in re.findall(r"FEDSS_KERNEL\(([^)]*)\)", listed):
        returns, name, *parameters = (" ".join(part.split()) for part in kernel.split(","))
        # A parameter is its type, or its type and its name.
        types = (text if text in _TYPES else text.rpartition(" ")[0] for text in parameters)
        signatures.append(
            Signature(_TYPES[returns] if returns != "void" else None, name, tuple(_TYPES[of] for of in types))
        )
    return signatures


class Kernels:
    """The table of one instruction set; every kernel is an attribute."""

    def __init__(self, instruction_set: str) -> None:
        library = ctypes.CDLL(str(build_library()))
        library.fedss_kernels.restype = c_void_p
        library.fedss_kernels.argtypes = [c_char_p]
        address = library.fedss_kernels(instruction_set.encode())
        if not address:
            raise LookupError(f"this processor has no {instruction_set}")
        signatures = kernel_signatures()
        pointers = ctypes.cast(address, POINTER(c_void_p * (1 + len(signatures)))).contents
        for pointer, (returns, name, parameters) in zip(pointers[1:], signatures, strict=True):
            assert pointer is not None, f"{name} is not in the table"
            setattr(self, name, ctypes.CFUNCTYPE(returns, *parameters)(pointer))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def pointer(array: npt.NDArray[Any] | None) -> int | None:
    """Where its numbers lie; the caller keeps the array."""
    if array is None:
        return None
    assert array.flags.c_contiguous
    assert array.dtype == np.float32
    return int(array.ctypes.data)


def shape_of(planes: FloatArray) -> Shape:
    return Shape(*planes.shape)


def value_of(
    x: FloatArray,
    moments: FloatArray | None = None,
    gamma: FloatArray | None = None,
    beta: FloatArray | None = None,
    activation: str = "none",
) -> Value:
    groups = 1 if moments is None else moments.shape[1]
    values = (pointer(x), shape_of(x), pointer(moments), pointer(gamma), pointer(beta))
    return Value(*values, groups, ACTIVATIONS.index(activation))
