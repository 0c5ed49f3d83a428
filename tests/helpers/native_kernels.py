"""The kernels of `ondevice/native`, called straight from numpy arrays: the structs of kernels.h as ctypes sees them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from ondevice.native.build import build_library

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


_RANGE = (c_int64, c_int64)
_SIGNATURES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("product_panels", (POINTER(Product),)),
    ("product", (POINTER(Product), *_RANGE)),
    ("group_moments", (c_void_p, Shape, c_int64, c_float, c_void_p, *_RANGE)),
    ("group_norm_gradient", (POINTER(PlaneGradient), POINTER(Value), c_void_p, c_void_p, c_void_p, *_RANGE)),
    ("materialise", (POINTER(Value), c_void_p, c_void_p, c_void_p, *_RANGE)),
    ("pooled_mean", (POINTER(Value), c_void_p, *_RANGE)),
    ("pooled_product", (c_void_p, POINTER(Value), c_void_p, *_RANGE)),
    ("depthwise", (POINTER(Value), c_void_p, Window, c_void_p, *_RANGE)),
    ("depthwise_input_gradient", (c_void_p, Shape, c_void_p, Window, c_void_p, Shape, *_RANGE)),
    ("depthwise_weight_gradient", (c_void_p, POINTER(Value), Window, c_void_p, *_RANGE)),
    ("max_pool", (c_void_p, Shape, Window, c_void_p, Shape, *_RANGE)),
    ("max_pool_gradient", (c_void_p, Shape, c_void_p, Shape, Window, c_void_p, *_RANGE)),
    ("channel_sums", (c_void_p, Shape, c_void_p, *_RANGE)),
    ("pixels", (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, *_RANGE)),
    ("activate", (c_void_p, c_int64, c_void_p, *_RANGE)),
    ("activation_gradient", (c_void_p, c_void_p, c_int64, c_void_p, *_RANGE)),
    ("gather_patches", (c_void_p, c_int64, Shape, Shape, Window, c_void_p, *_RANGE)),
    ("scatter_patches", (c_void_p, Shape, Window, c_void_p, c_int64, Shape, *_RANGE)),
)


class Kernels:
    """The table of one instruction set; every kernel is an attribute."""

    def __init__(self, instruction_set: str) -> None:
        library = ctypes.CDLL(str(build_library()))
        library.fedss_kernels.restype = c_void_p
        library.fedss_kernels.argtypes = [c_char_p]
        address = library.fedss_kernels(instruction_set.encode())
        if not address:
            raise LookupError(f"this processor has no {instruction_set}")
        pointers = ctypes.cast(address, POINTER(c_void_p * (1 + len(_SIGNATURES)))).contents
        for pointer, (name, arguments) in zip(pointers[1:], _SIGNATURES, strict=True):
            assert pointer is not None, f"the library has no {name}"
            returns = c_int64 if name == "product_panels" else None
            setattr(self, name, ctypes.CFUNCTYPE(returns, *arguments)(pointer))

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
