"""What every message of a round says of itself: its kind, the format's version, the round and the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ondevice.contract import safetensors_file
from ondevice.contract.messages.checked_tensors import WireError
from ondevice.contract.safetensors_file import OpenFile, SafetensorsError, Tensor

VERSION = "2"
MAX_MESSAGE_BYTES = 1 << 30

Kind = Literal["plan", "request", "rows", "slice", "update", "lookup", "found"]


@dataclass(frozen=True)
class Envelope:
    """Who a message is from or for, and in which round."""

    round_index: int
    client_id: int


def encoded(
    kind: Kind, envelope: Envelope, tensors: Mapping[str, Tensor], more: Mapping[str, str] | None = None
) -> bytes:
    return safetensors_file.to_bytes(tensors, {**metadata_of(kind, envelope), **(more or {})})


def metadata_of(kind: Kind, envelope: Envelope) -> dict[str, str]:
    return {
        "kind": kind,
        "version": VERSION,
        "round": str(envelope.round_index),
        "client": str(envelope.client_id),
    }


def decoded(data: bytes, kind: Kind, envelope: Envelope) -> OpenFile:
    tensors = opened(data, kind, set())
    for name, value in (("round", envelope.round_index), ("client", envelope.client_id)):
        if tensors.metadata[name] != str(value):
            raise WireError(f"the message is for {name} {tensors.metadata[name]!r}; expected {value}")
    return tensors


def opened(data: bytes, kind: Kind, more: set[str]) -> OpenFile:
    """A message of this kind, its envelope not looked at yet."""
    tensors = _file(data)
    metadata = tensors.metadata
    if metadata.get("version", VERSION) != VERSION:
        raise WireError(
            f"the message has format version {metadata['version']!r}; this program reads {VERSION!r}: update the older side"
        )
    known = {"kind", "version", "round", "client"}
    if not known <= set(metadata):
        raise WireError(f"metadata has {sorted(metadata)}; expected {', '.join(sorted(known))}")
    if metadata["kind"] != kind:
        remark = "" if metadata["kind"] in get_args(Kind) else ", a kind this version does not know"
        raise WireError(f"the message is a {metadata['kind']!r}{remark}; expected a {kind!r}")
    if set(metadata) != known | more:
        raise WireError(f"metadata has {sorted(metadata)}; expected {', '.join(sorted(known | more))}")
    return tensors


def count_of(metadata: Mapping[str, str], name: str) -> int:
    text = metadata[name]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise WireError(f"{name} is {text!r}; expected a whole number, 0 or more")
    return int(text)


def kind_of(data: bytes) -> str:
    """What a message says it is; nothing else of it has been looked at."""
    return _file(data).metadata.get("kind", "")


def _file(data: bytes) -> OpenFile:
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"the message has {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        return OpenFile(data)
    except SafetensorsError as error:
        raise WireError(f"not a message: {error}") from None
