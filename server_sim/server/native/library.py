"""Compiles the loops with plain g++, once for each state of the sources, and opens them.

The library is kept in the user's cache folder under a name that is a hash of sources and flags.  It is never needed: where
it cannot be compiled, numpy does the same work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from ondevice.contract.safetensors_file import Array
from ondevice.tools.cache_folder import default_cache_folder

SOURCE_FOLDER = Path(__file__).parent
SOURCES = ("rows.cpp", "sums.cpp")
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-ffp-contract=off",  # a product and a sum are rounded one after the other, as numpy's are
    "-fno-math-errno",
    "-fno-trapping-math",
)

_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ROWS = (_POINTER, _POINTER, _POINTER, _COUNT, _COUNT, _POINTER, _COUNT, _COUNT, _POINTER)
_SIGNATURES = {
    "fedss_read_rows": (_COUNT, _ROWS),
    "fedss_apply_rows": (_COUNT, _ROWS),
    "fedss_add_scaled": (None, (_POINTER, _POINTER, _COUNT, _FLOAT)),
    "fedss_divide": (_FLOAT, (_POINTER, _COUNT, _FLOAT)),
    "fedss_multiply": (_FLOAT, (_POINTER, _COUNT, _FLOAT)),
    "fedss_divide_rows": (_FLOAT, (_POINTER, _COUNT, _COUNT, _POINTER)),
    "fedss_forget_rows": (None, (_POINTER, _POINTER, _COUNT)),
    "fedss_add_rows": (
        _COUNT,
        (_POINTER, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _FLOAT),
    ),
}


@cache
def native_library() -> ctypes.CDLL | None:
    """The loops, compiled now unless the cache has them; None where that cannot be."""
    try:
        return open_library(build_library(default_cache_folder()))
    except (OSError, subprocess.CalledProcessError):
        return None


def build_library(cache_folder: Path) -> Path:
    """OSError where there is no compiler or no room, CalledProcessError where it refuses."""
    digest = hashlib.sha256(repr((FLAGS, platform.machine())).encode())
    for source in sorted(path for path in SOURCE_FOLDER.iterdir() if path.suffix in (".h", ".cpp")):
        digest.update(source.name.encode() + source.read_bytes())
    library = cache_folder / f"libfedss_server-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("g++ is not installed")
    cache_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder) as scratch:
        unfinished = Path(scratch) / library.name
        sources = [str(SOURCE_FOLDER / name) for name in SOURCES]
        subprocess.run([compiler, *FLAGS, *sources, "-o", str(unfinished)], capture_output=True, check=True)
        os.replace(unfinished, library)
    return library


def open_library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def address(array: Array, dtype: type[np.generic]) -> int:
    """Where an array of this type begins that lies in one piece; the caller keeps it alive."""
    flags = array.flags
    if array.dtype != dtype or not flags.c_contiguous:
        raise ValueError(
            f"the array is {array.dtype} {list(array.shape)}; expected {dtype.__name__} in one piece"
        )
    if flags.writeable and array.size:
        # A third of the time of the other, and called for every client.
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data
