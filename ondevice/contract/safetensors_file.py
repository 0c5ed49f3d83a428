"""The safetensors container, read without trusting it and written without surprises.

A file is 8 bytes (little-endian length of the header), the header (JSON: name -> dtype, shape, data_offsets, plus a map of
strings under `__metadata__`), and the data.  The `safetensors` package reads what is written here and the other way round
(a test proves it); we keep our own functions because a message from a phone needs limits that are checked *before*
memory is allocated, arrays that view the received bytes instead of copying them, and a byte-for-byte reproducible header.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ondevice.contract.files.safetensors_header import DTYPE_OF, Block, Entry, Header, Spec
from ondevice.contract.files.whole_file import replace_file

MAX_HEADER_BYTES = 1 << 20
MAX_TENSORS = 10_000
MAX_DIMENSIONS = 8
_BLOCK_BYTES = 1 << 20
_MAX_COUNT = (1 << 63) - 1
_FIELDS = {"dtype", "shape", "data_offsets"}

Array = npt.NDArray[Any]

_NAME_OF: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int8): "I8",
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


@dataclass(frozen=True)
class OnePiece:
    """The tensors of a block as one array."""

    block: Block
    array: Array
    """Of one dimension, and of the block's type."""

    @staticmethod
    def joined(tensors: Mapping[str, Tensor]) -> OnePiece:
        """Copies of tensors that are all of one type."""
        arrays = {name: _bits(tensor) for name, tensor in tensors.items()}
        types = {_type_name(tensor) for tensor in tensors.values()} or {"F32"}
        if len(types) > 1:
            raise ValueError(f"tensors of types {', '.join(sorted(types))}; one piece has one type")
        block = Block({name: array.shape for name, array in arrays.items()}, types.pop())
        flat = [array.reshape(-1) for array in arrays.values()]
        return OnePiece(block, np.concatenate([np.empty(0, DTYPE_OF[block.dtype]), *flat]))


def to_bytes(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], last: OnePiece | None = None
) -> bytes:
    """Serialise, tensors in the given order; 8-byte types should come first so that every array stays aligned."""
    return b"".join(chunks(tensors, metadata, last))


def write_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The same bytes into a file that appears whole or not at all (`whole_file`), without a second copy in memory."""
    replace_file(path, chunks(tensors, metadata))


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors that view the memory-mapped file."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise SafetensorsError(f"{path} is empty")
        return from_bytes(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def byte_blocks(array: Array) -> Iterator[memoryview]:
    """The bytes of an array in C order: one block, or some rows at a time copied where it does not lie in one piece."""
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
        return
    rows = max(1, _BLOCK_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8).data


def chunks(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], last: OnePiece | None = None
) -> Iterator[bytes | memoryview]:
    """The bytes in pieces, which view the arrays where those lie in one piece: what `to_bytes` joins."""
    specs: dict[str, Spec] = {}
    arrays: list[Array] = []
    for name, tensor in tensors.items():
        array = _bits(tensor)
        specs[name] = _type_name(tensor), list(array.shape)
        arrays.append(array)
    yield Header(metadata, specs, last.block if last else None).text
    for array in [*arrays, last.array] if last else arrays:
        yield from byte_blocks(array)


def _bits(tensor: Tensor) -> Array:
    return tensor.bits if isinstance(tensor, Bfloat16) else tensor


def _type_name(tensor: Tensor) -> str:
    return "BF16" if isinstance(tensor, Bfloat16) else _NAME_OF[tensor.dtype]


def from_bytes(data: bytes | memoryview) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (views of `data`, read-only) and metadata.  Raises SafetensorsError for anything out of order."""
    opened = OpenFile(data)
    return {name: opened[name] for name in opened}, opened.metadata


class OpenFile(Mapping[str, Tensor]):
    """The tensors of a file, views of its bytes: the header is checked whole, arrays are made as they are asked for.

    Raises SafetensorsError for anything out of order.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        if len(data) < 8:
            raise SafetensorsError(f"{len(data)} bytes; expected at least the 8 of the header's length")
        (header_size,) = struct.unpack("<Q", data[:8])
        if header_size > MAX_HEADER_BYTES or header_size > len(data) - 8:
            raise SafetensorsError(
                f"the header claims {header_size} bytes; {len(data) - 8} are there and {MAX_HEADER_BYTES} are allowed"
            )
        text = bytes(data[8 : 8 + header_size])
        header = _parse_header(text)
        has_metadata = "__metadata__" in header
        self._block: Block | None = None
        self._block_start = 0
        self.metadata: dict[str, str] = _checked_metadata(header.pop("__metadata__", {}))
        if len(header) > MAX_TENSORS:
            raise SafetensorsError(f"{len(header)} tensors; at most {MAX_TENSORS} are allowed")
        self._body = memoryview(data)[8 + header_size :]
        self._entries: dict[str, Entry] = {}
        expected_start = 0
        for start, end, name, dtype, shape in sorted(_entry(*item) for item in header.items()):
            # Python integers do not overflow, so a huge shape is caught here, before numpy sees it.
            size = math.prod(shape) * DTYPE_OF[dtype].itemsize
            if start != expected_start or end - start != size or end > len(self._body):
                raise SafetensorsError(
                    f"{name}: offsets {start} to {end} for {size} bytes; expected to start at {expected_start} "
                    f"and to end within the {len(self._body)} bytes of data"
                )
            expected_start = end
            self._entries[name] = (dtype, shape, start, end)
            if not size:
                _check_empty(name, shape)
        if expected_start != len(self._body):
            raise SafetensorsError(f"{len(self._body) - expected_start} bytes of data belong to no tensor")
        # Where no key came twice, the strings of the text are those that are left: a name, three fields and a type per
        # tensor, and the metadata.  To count them takes a fraction of the time of a look at every key.
        num_strings = 5 * len(header) + has_metadata + 2 * len(self.metadata)
        if b"\\" in text or text.count(b'"') != 2 * num_strings:
            json.loads(text, object_pairs_hook=without_duplicates)

    @staticmethod
    def as_written(data: bytes | memoryview, header: Header) -> OpenFile | None:
        """The file, if it begins with this very header: then nothing has to be parsed.  None if it does not."""
        if data[: len(header.text)] != header.text or len(data) != len(header.text) + header.data_size:
            return None
        opened = OpenFile.__new__(OpenFile)
        opened.metadata = dict(header.metadata)
        opened._body = memoryview(data)[len(header.text) :]
        opened._entries = header.entries
        opened._block, opened._block_start = header.block, header.block_start
        return opened

    def __getitem__(self, name: str) -> Tensor:
        return self._view(*self._entries[name])

    def keys(self) -> KeysView[str]:
        """The dictionary's own, which are compared without a detour over Python."""
        return self._entries.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def in_one_piece(self, block: Block) -> Tensor | None:
        """All tensors of a block as one of one dimension, if they have its shapes and one type, and lie one behind the other
        in its order; else None."""
        if self._block is block:
            size = block.num_bytes // DTYPE_OF[block.dtype].itemsize
            return self._view(block.dtype, [size], self._block_start, self._block_start + block.num_bytes)
        first = next((self._entries.get(name) for name in block.shapes), None)
        if first is None:
            return None
        dtype, _, first_start, _ = first
        next_start = first_start
        for name, shape in block.shapes.items():
            given, given_shape, start, end = self._entries.get(name, _NOTHING)
            if start != next_start or given != dtype or given_shape != shape:
                return None
            next_start = end
        size = (next_start - first_start) // DTYPE_OF[dtype].itemsize
        return self._view(dtype, [size], first_start, next_start)

    def _view(self, dtype: str, shape: list[int], start: int, end: int) -> Tensor:
        array = np.frombuffer(self._body[start:end], DTYPE_OF[dtype]).reshape(shape)
        return Bfloat16(array) if dtype == "BF16" else array


_NOTHING: Entry = ("", [], -1, -1)


def _check_empty(name: str, shape: list[int]) -> None:
    """No bytes at all, and yet there may be dimensions beyond what numpy can count."""
    try:
        np.empty(0, np.uint8).reshape(shape)
    except ValueError as error:
        raise SafetensorsError(f"{name}: shape {shape} cannot be: {error}") from None


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode())
    # Not UTF-8, not JSON, a number of thousands of digits; or nested too deep.
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"the header is a {type(header).__name__}; expected a JSON object")
    return header


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SafetensorsError("__metadata__ is not a map of strings")
    return metadata


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For JSON that is read without trust: of a key that is there twice, each reader may believe another one."""
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise SafetensorsError("the header names the same key twice")
    return keys


def _entry(name: str, entry: Any) -> tuple[int, int, str, str, list[int]]:
    """Where its data begins and ends, its name, its type and its shape: as the data lie, so they are sorted."""
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise SafetensorsError(f"{name}: expected exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(offsets, list) and len(offsets) == 2 and _are_counts(offsets)):
        raise SafetensorsError(f"{name}: data_offsets are {offsets!r}; expected two whole numbers, 0 or more")
    if not isinstance(dtype, str) or dtype not in DTYPE_OF:
        raise SafetensorsError(f"{name}: dtype is {dtype!r}; expected one of {', '.join(DTYPE_OF)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not _are_counts(shape):
        raise SafetensorsError(
            f"{name}: shape is {shape!r}; expected at most {MAX_DIMENSIONS} whole numbers, 0 or more"
        )
    return offsets[0], offsets[1], name, dtype, shape


def _are_counts(values: list[Any]) -> bool:
    for value in values:  # noqa: SIM110 - all() takes twice the time, and every tensor of every message comes here
        # Not isinstance: true and false are integers to Python.
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            return False
    return True
