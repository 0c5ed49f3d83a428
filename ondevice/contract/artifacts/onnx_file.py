"""What an .onnx file must not hold: tensors whose numbers lie in another file.

ONNX lets a tensor say "read me from there", with any path, and a runtime obeys.  The manifest's hashes do not cover such
a file, and its numbers would come out as gradients, which go to the server: a stranger's artifact could read what it
likes.  Ours never have one, so every such tensor is refused before a runtime sees the file.

A device has no `onnx` package, and a search for bytes could be fooled, so this walks the protobuf messages that can
lead to a tensor; every other field is skipped by its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ondevice.contract.artifact import ArtifactError

Message = Mapping[int, str]
"""Field number -> kind of message, for the fields that can lead to a tensor."""

MESSAGES: Mapping[str, Message] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""onnx.proto, as of IR version 13."""

TENSOR_NAME, EXTERNAL_DATA, DATA_LOCATION = 8, 13, 14
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
DEEPEST = 64


def refuse_external_data(path: Path) -> None:
    """Raises ArtifactError if a tensor of the model, however deep, names another file, or if this is no ONNX file."""
    data = memoryview(path.read_bytes())
    try:
        found = next(_external(data, "model", 0), None)
    except (IndexError, ValueError) as error:
        raise ArtifactError(f"{path} is not an ONNX file ({error}); export the artifact again") from error
    if found is not None:
        raise ArtifactError(
            f"{path}: the tensor {found!r} keeps its numbers in another file; an artifact must be complete, and such a file "
            "could be any on this machine: do not use it, or export the artifact again"
        )


def _external(data: memoryview, kind: str, depth: int) -> Iterator[str]:
    """Names of the tensors that point outside."""
    if depth > DEEPEST:
        raise ValueError(f"messages are nested deeper than {DEEPEST}")
    name, outside = "", False
    for field, value in _fields(data):
        if kind == "tensor":
            outside |= field == EXTERNAL_DATA or (field == DATA_LOCATION and value != 0)
            if field == TENSOR_NAME and isinstance(value, memoryview):
                name = bytes(value[:200]).decode(errors="replace")
        elif field in MESSAGES[kind]:
            if not isinstance(value, memoryview):
                raise ValueError(f"field {field} of a {kind} is not a message")
            yield from _external(value, MESSAGES[kind][field], depth + 1)
    if outside:
        yield name


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers with their numbers or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire_type == BYTES:
            length, at = _varint(data, at)
        elif wire_type in (FIXED64, FIXED32):
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type} at byte {at}")
        if length > len(data) - at:
            raise ValueError(f"a field of {length} bytes where {len(data) - at} are left")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at a position, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number of more than ten bytes at byte {at}")
