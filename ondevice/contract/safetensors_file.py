"""The safetensors container, read without trusting it and written without surprises.

A file is 8 bytes (little-endian length of the header), the header (JSON: name -> dtype, shape, data_offsets, plus a map of
strings under `__metadata__`), and the data.  The `safetensors` package reads what is written here and the other way round
(a test proves it); we keep our own functions because a message from a phone needs limits that are checked *before*
memory is allocated, arrays that view the received bytes instead of copying them, and a byte-for-byte reproducible header.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_HEADER_BYTES = 1 << 20
MAX_TENSORS = 10_000
MAX_DIMENSIONS = 8

Array = npt.NDArray[Any]

# bfloat16 has no numpy type: it travels as the upper half of a float32, in uint16.
_DTYPE_OF: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
}
_NAME_OF: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.int64): "I64",
    np.dtype(np.uint8): "U8",
}


class SafetensorsError(ValueError):
    """These bytes are not a safetensors file that we accept."""


@dataclass(frozen=True)
class Bfloat16:
    """Marks a uint16 array as holding bfloat16 values."""

    bits: npt.NDArray[np.uint16]

    @staticmethod
    def from_float32(values: npt.NDArray[np.float32]) -> Bfloat16:
        """Rounded to nearest, ties to even."""
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return Bfloat16((rounded >> 16).astype(np.uint16))

    def to_float32(self) -> npt.NDArray[np.float32]:
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


Tensor = Array | Bfloat16


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Serialise, tensors in the given order; 8-byte types should come first so that every array stays aligned."""
    return b"".join(_chunks(tensors, metadata))


def write_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The same bytes into a file that appears whole or not at all, without a second copy in memory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for chunk in _chunks(tensors, metadata):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors that view the memory-mapped file."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise SafetensorsError(f"{path} is empty")
        return from_bytes(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _chunks(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    buffers: list[memoryview] = []
    offset = 0
    for name, tensor in tensors.items():
        array, dtype = (
            (tensor.bits, "BF16") if isinstance(tensor, Bfloat16) else (tensor, _NAME_OF[tensor.dtype])
        )
        buffer = np.ascontiguousarray(array)
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + buffer.nbytes],
        }
        buffers.append(buffer.reshape(-1).view(np.uint8).data)
        offset += buffer.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)), text, *buffers]


def from_bytes(data: bytes | memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (views of `data`, read-only) and metadata.  Raises SafetensorsError for anything out of order."""
    if len(data) < 8:
        raise SafetensorsError(f"{len(data)} bytes; expected at least the 8 of the header's length")
    (header_size,) = struct.unpack("<Q", data[:8])
    if header_size > MAX_HEADER_BYTES or header_size > len(data) - 8:
        raise SafetensorsError(
            f"the header claims {header_size} bytes; {len(data) - 8} are there and {MAX_HEADER_BYTES} are allowed"
        )
    header = _parse_header(bytes(data[8 : 8 + header_size]))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SafetensorsError("__metadata__ is not a map of strings")
    if len(header) > MAX_TENSORS:
        raise SafetensorsError(f"{len(header)} tensors; at most {MAX_TENSORS} are allowed")
    body = memoryview(data)[8 + header_size :]
    tensors: dict[str, Tensor] = {}
    expected_start = 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(*item)):
        start, end = _offsets(name, entry)
        dtype, shape = _dtype_and_shape(name, entry)
        # Python integers do not overflow, so a huge shape is caught here, before numpy sees it.
        size = dtype.itemsize
        for dimension in shape:
            size *= dimension
        if start != expected_start or end - start != size or end > len(body):
            raise SafetensorsError(
                f"{name}: offsets {start} to {end} for {size} bytes; expected to start at {expected_start} "
                f"and to end within the {len(body)} bytes of data"
            )
        expected_start = end
        try:
            array = np.frombuffer(body[start:end], dtype).reshape(shape)
        except ValueError as error:  # no bytes at all, and yet dimensions beyond what numpy can count
            raise SafetensorsError(f"{name}: shape {shape} cannot be: {error}") from None
        tensors[name] = Bfloat16(array) if entry["dtype"] == "BF16" else array
    if expected_start != len(body):
        raise SafetensorsError(f"{len(body) - expected_start} bytes of data belong to no tensor")
    return tensors, metadata


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=without_duplicates)
    # Not UTF-8, not JSON, a number of thousands of digits; or nested too deep.
    except (ValueError, RecursionError) as error:
        if isinstance(error, SafetensorsError):
            raise
        raise SafetensorsError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"the header is a {type(header).__name__}; expected a JSON object")
    return header


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For JSON that is read without trust: of a key that is there twice, each reader may believe another one."""
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise SafetensorsError("the header names the same key twice")
    return keys


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise SafetensorsError(f"{name}: expected exactly dtype, shape and data_offsets")
    offsets = entry["data_offsets"]
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(_is_count(value) for value in offsets)):
        raise SafetensorsError(f"{name}: data_offsets are {offsets!r}; expected two whole numbers, 0 or more")
    return offsets[0], offsets[1]


def _dtype_and_shape(name: str, entry: dict[str, Any]) -> tuple[np.dtype[Any], list[int]]:
    dtype, shape = entry["dtype"], entry["shape"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_OF:
        raise SafetensorsError(f"{name}: dtype is {dtype!r}; expected one of {', '.join(_DTYPE_OF)}")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMENSIONS
        or not all(_is_count(value) for value in shape)
    ):
        raise SafetensorsError(
            f"{name}: shape is {shape!r}; expected at most {MAX_DIMENSIONS} whole numbers, 0 or more"
        )
    return _DTYPE_OF[dtype], shape


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
