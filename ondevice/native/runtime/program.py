"""An open ExecuTorch program, from numpy to numpy: `program.h` through ctypes.

No torch, whose Python runtime alone takes more memory than the training step, and no copy: the runtime reads the caller's
arrays and writes into the arrays that it is given.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ondevice.native.build import build_library

Array = npt.NDArray[np.float32] | npt.NDArray[np.int64] | npt.NDArray[np.uint8]
_MAX_RANK = 6
_DTYPES = (np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.uint8))
"""In the order of their numbers in `fedss_tensor`."""


class ProgramError(RuntimeError):
    """ExecuTorch could not load or run a program."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_int64 * _MAX_RANK),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class Program:
    """One .pte file, loaded; its memory is held until it is closed or collected."""

    def __init__(self, path: Path, profiled: bool = False) -> None:
        self._library = _library()
        self._handle: int | None = self._library.fedss_open(os.fsencode(path), profiled)
        if not self._handle:
            raise ProgramError(f"{path}: {self._reason()}; export it again, with this version of ExecuTorch")
        self._path = path

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Once.  An output that varies in size is given room for its largest."""
        ins, outs = _tensors(inputs), _tensors(outputs)
        if not self._library.fedss_run(self._handle, ins, len(inputs), outs, len(outputs)):
            raise ProgramError(f"{self._path}: {self._reason()}")

    @property
    def planned_memory(self) -> int:
        """Bytes of the arena."""
        return int(self._library.fedss_planned_memory(self._handle))

    def nanoseconds(self) -> list[int]:
        """Processor time of every instruction in the last run of a program that is profiled."""
        count = self._library.fedss_profile(self._handle, None, 0)
        measured = (ctypes.c_int64 * count)()
        self._library.fedss_profile(self._handle, measured, count)
        return list(measured)

    def close(self) -> None:
        if self._handle:
            self._library.fedss_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _reason(self) -> str:
        return str(self._library.fedss_last_error().decode(errors="replace"))


def set_threads(count: int) -> None:
    """How many threads the kernels use, in the whole process."""
    if not _library().fedss_set_threads(count):
        raise ProgramError(f"ExecuTorch could not make a pool of {count} threads")


def instruction_set() -> str:
    """What the kernels run with on this processor: `avx2`, or `baseline`."""
    return str(_library().fedss_instruction_set().decode())


def _tensors(arrays: Sequence[Array]) -> Any:
    tensors = (_Tensor * len(arrays))()
    for tensor, array in zip(tensors, arrays, strict=True):
        if not array.flags.c_contiguous or array.dtype not in _DTYPES or array.ndim > _MAX_RANK:
            raise ValueError(
                f"{array.dtype}{list(array.shape)}, strides {array.strides}; "
                f"expected contiguous float32, int64 or uint8 of at most {_MAX_RANK} dimensions"
            )
        tensor.data = array.ctypes.data
        tensor.sizes[: array.ndim] = array.shape
        tensor.rank = array.ndim
        tensor.dtype = _DTYPES.index(array.dtype)
    return tensors


_loaded: list[ctypes.CDLL] = []


def _library() -> ctypes.CDLL:
    """The kernel library, built and loaded on first use; ctypes lets go of the interpreter lock while it runs."""
    if not _loaded:
        library = ctypes.CDLL(str(build_library()))
        library.fedss_open.restype = ctypes.c_void_p
        library.fedss_open.argtypes = [ctypes.c_char_p, ctypes.c_bool]
        library.fedss_close.restype = None
        library.fedss_close.argtypes = [ctypes.c_void_p]
        library.fedss_run.restype = ctypes.c_bool
        tensors = ctypes.POINTER(_Tensor)
        library.fedss_run.argtypes = [ctypes.c_void_p, tensors, ctypes.c_int64, tensors, ctypes.c_int64]
        library.fedss_profile.restype = ctypes.c_int64
        library.fedss_profile.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64]
        library.fedss_planned_memory.restype = ctypes.c_int64
        library.fedss_planned_memory.argtypes = [ctypes.c_void_p]
        library.fedss_set_threads.restype = ctypes.c_bool
        library.fedss_set_threads.argtypes = [ctypes.c_int32]
        library.fedss_instruction_set.restype = ctypes.c_char_p
        library.fedss_last_error.restype = ctypes.c_char_p
        _loaded.append(library)
    return _loaded[0]
