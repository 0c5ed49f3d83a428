"""The kernels of `ondevice/native`, called with numpy arrays in a process of their own: `fuzz/kernel_calls.cpp`.

The structs of kernels.h as Python sees them have arrays where C++ has pointers.
"""

from __future__ import annotations

import contextlib
import re
import struct
import subprocess
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ondevice.native.build import SOURCE_FOLDER

FloatArray = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
ACTIVATIONS = (
    "none", "relu", "hardswish", "hardsigmoid", "relu6", "sigmoid", "silu", "tanh", "gelu", "gelu_tanh",
    "softplus",
)  # fmt: skip


class Shape(NamedTuple):
    channels: int
    batch: int
    height: int
    width: int


class Window(NamedTuple):
    kernel: int
    stride: int
    padding: int


class Grid(NamedTuple):
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    padding_height: int
    padding_width: int
    dilation_height: int
    dilation_width: int


class AverageBy(NamedTuple):
    divisor: int
    count_padding: int


class Extents(NamedTuple):
    first: int
    second: int
    third: int
    fourth: int


class Matrix(NamedTuple):
    data: FloatArray | None
    row_stride: int
    column_stride: int


class Value(NamedTuple):
    x: FloatArray | None
    shape: Shape
    moments: FloatArray | None
    gamma: FloatArray | None
    beta: FloatArray | None
    groups: int
    activation: int


class Product(NamedTuple):
    rows: int
    columns: int
    depth: int
    a: Matrix
    b: Matrix
    start: Matrix
    out: FloatArray
    out_stride: int
    value: Value = Value(None, Shape(0, 0, 0, 0), None, None, None, 1, 0)
    gate: FloatArray | None = None


class PlaneGradient(NamedTuple):
    planes: FloatArray | None
    scale: FloatArray | None
    shift: FloatArray | None


STRUCTS: tuple[type[Any], ...] = (
    Shape, Window, Grid, AverageBy, Extents, Matrix, Product, Value, PlaneGradient,
)  # fmt: skip
"""Those of kernels.h; test_declarations.py compares their fields."""


def _kinds(of: Any) -> str:
    """The words that an argument of a type becomes: i(nteger), f(loat), p(ointer)."""
    if of is int:
        return "i"
    if of in STRUCTS:
        return "".join(map(_kinds, typing.get_type_hints(of).values()))
    return "p"


_KINDS = {
    **dict.fromkeys(("const float*", "float*", "const uint8_t*", "const int64_t*"), "p"),
    **dict.fromkeys(("int64_t", "Activation"), "i"),
    "float": "f",
    **{struct.__name__: _kinds(struct) for struct in STRUCTS},
    **{f"const {struct.__name__}&": _kinds(struct) for struct in STRUCTS},
}


class Signature(NamedTuple):
    name: str
    kinds: str


def kernel_signatures() -> list[Signature]:
    """The kernels of kernel_list.h, in the order in which they stand in the table."""
    listed = re.sub(r"//.*", "", (SOURCE_FOLDER / "kernels/kernel_list.h").read_text())
    signatures = []
    for kernel in re.findall(r"FEDSS_KERNEL\(([^)]*)\)", listed):
        _returns, name, *parameters = (" ".join(part.split()) for part in kernel.split(","))
        # A parameter is its type, or its type and its name.
        types = (text if text in _KINDS else text.rpartition(" ")[0] for text in parameters)
        signatures.append(Signature(name, "".join(_KINDS[of] for of in types)))
    return signatures


class Kernels:
    """The table of one instruction set; every kernel is an attribute, and writes into the arrays that it is given."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process = self._started()
        self._signatures = {
            signature.name: (index, signature) for index, signature in enumerate(kernel_signatures())
        }

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self._signatures:
            raise AttributeError(name)
        index, signature = self._signatures[name]
        return lambda *arguments: self._call(index, signature, arguments)

    def close(self) -> str:
        """Ends the process; what it said, if anything."""
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with self._process:
            return self._process.stderr.read().decode(errors="replace")

    def _call(self, index: int, signature: Signature, arguments: tuple[Any, ...]) -> int:
        buffers: dict[int, Array] = {}
        words = [struct.pack("<q", index)]
        for kind, argument in zip(signature.kinds, _flat(arguments), strict=True):
            if kind == "f":
                words.append(struct.pack("<d", argument))
                continue
            if kind == "p":
                if argument is not None:
                    assert argument.flags.c_contiguous
                    buffers.setdefault(id(argument), argument)
                argument = -1 if argument is None else list(buffers).index(id(argument))
            assert isinstance(argument, int), f"{signature.name} takes an integer, not {argument}"
            words.append(struct.pack("<q", argument))
        arrays = list(buffers.values())
        contents = b"".join(struct.pack("<q", array.nbytes) + array.tobytes() for array in arrays)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(struct.pack("<q", len(arrays)) + contents + b"".join(words))
            self._process.stdin.flush()
            (returned,) = struct.unpack("<q", self._read(8))
            for array in arrays:
                array[...] = np.frombuffer(self._read(array.nbytes), array.dtype).reshape(array.shape)
        except (OSError, EOFError):
            said, self._process = self.close(), self._started()
            raise AssertionError(f"{signature.name} died: {said or 'by a signal'}") from None
        return int(returned)

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        read = self._process.stdout.read(size)
        if len(read) < size:
            raise EOFError
        return read


def _flat(arguments: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for argument in arguments:
        flat += _flat(argument) if isinstance(argument, tuple) else [argument]
    return flat


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
    return Value(x, shape_of(x), moments, gamma, beta, groups, ACTIVATIONS.index(activation))
