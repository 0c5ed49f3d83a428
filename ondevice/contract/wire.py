"""The messages of a round as bytes: the only place where they are made or read.

Format version 1: a safetensors file whose metadata says `kind`, `version`, `round` and `client`.

| kind    | from   | tensors                                                                                         |
|---------|--------|-------------------------------------------------------------------------------------------------|
| request | client | `class_ids` I64 [s]: the sorted ids of S_k, and nothing else                                     |
| slice   | server | `class_ids` I64 [s], `columns` [s, d], `extractor.<name>` for every trainable tensor             |
| update  | client | as slice, but differences client − server; and `num_examples` I64 [1], `mean_loss` F32 [1]       |

Weights travel as F32 by default, as F16 or BF16 when asked (`Precision`); they are float32 again once read.

Everything is checked before anything is believed or allocated: size, header, names, shapes, types, finite numbers, sorted
unique class ids in range, positive counts, and for updates the limits of what one client may do.
Whatever is wrong, the reader raises `WireError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ondevice.contract import safetensors_file
from ondevice.contract.plain_text import plain_text
from ondevice.contract.safetensors_file import Bfloat16, SafetensorsError, Tensor
from ondevice.contract.vocabulary import (
    ClientUpdate,
    Columns,
    FloatArray,
    IntArray,
    ModelSlice,
    Parameters,
    check_class_ids,
    largest_entry,
)

VERSION = "1"
MAX_MESSAGE_BYTES = 1 << 30
_FLOAT32_MAX = float(np.finfo(np.float32).max)

Kind = Literal["request", "slice", "update"]
Precision = Literal["fp32", "fp16", "bf16"]


class WireError(ValueError):
    """A message that is not what it should be; it changed nothing.  What it quotes of the message is made plain."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain_text(reason))


@dataclass(frozen=True)
class Envelope:
    """Who a message is from or for, and in which round."""

    round_index: int
    client_id: int


@dataclass(frozen=True)
class Expected:
    """What the reader of a model knows already: how many classes there are, and the shape of everything."""

    num_classes: int
    column_dim: int
    extractor_shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class UpdateLimits:
    """What one client may do to a round.  The mean of a round is summed in float32 and weighted by what clients say of
    themselves: without limits one entry of 3e38, or one claim of 2^62 examples, would *be* the mean."""

    max_examples: int = 100_000
    """The number of examples that a client may claim: its weight in the mean."""
    max_change: float = 1e4
    """The largest |entry| of a difference.  Weights are of the order of 1: a client beyond this has diverged, or lies."""


DEFAULT_LIMITS = UpdateLimits()


def request_to_bytes(envelope: Envelope, class_ids: IntArray) -> bytes:
    check_class_ids(class_ids)
    return _encode("request", envelope, {"class_ids": class_ids})


def request_from_bytes(data: bytes, envelope: Envelope, num_classes: int) -> IntArray:
    tensors = _decode(data, "request", envelope)
    _expect_names(tensors, {"class_ids"})
    return _class_ids(tensors, num_classes)


def slice_to_bytes(envelope: Envelope, model_slice: ModelSlice, precision: Precision = "fp32") -> bytes:
    weights = _weights(model_slice.extractor, model_slice.columns, precision)
    return _encode("slice", envelope, {"class_ids": model_slice.columns.class_ids, **weights})


def slice_from_bytes(data: bytes, envelope: Envelope, class_ids: IntArray, expected: Expected) -> ModelSlice:
    """The slice that answers the request for `class_ids`."""
    tensors = _decode(data, "slice", envelope)
    _expect_names(tensors, {"class_ids", *_weight_names(expected)})
    extractor, columns = _read_weights(tensors, class_ids, expected)
    return ModelSlice(extractor, columns)


def update_to_bytes(envelope: Envelope, update: ClientUpdate, precision: Precision = "fp32") -> bytes:
    weights = _weights(update.extractor_delta, update.columns_delta, precision)
    return _encode(
        "update",
        envelope,
        {
            "class_ids": update.columns_delta.class_ids,
            "num_examples": np.array([update.num_examples], np.int64),
            "mean_loss": np.array([update.mean_loss], np.float32),
            **weights,
        },
    )


def update_from_bytes(
    data: bytes,
    envelope: Envelope,
    class_ids: IntArray,
    expected: Expected,
    limits: UpdateLimits = DEFAULT_LIMITS,
) -> ClientUpdate:
    """The update for the slice of `class_ids` that was sent."""
    tensors = _decode(data, "update", envelope)
    _expect_names(tensors, {"class_ids", "num_examples", "mean_loss", *_weight_names(expected)})
    extractor, columns = _read_weights(tensors, class_ids, expected, limits.max_change)
    num_examples = int(_integers(tensors, "num_examples", (1,))[0])
    if not 1 <= num_examples <= limits.max_examples:
        raise WireError(
            f"num_examples is {num_examples}; expected 1 to {limits.max_examples} (server.max_examples)"
        )
    if num_examples * limits.max_change > _FLOAT32_MAX:
        largest = max(map(largest_entry, (columns.weights, *extractor.values())))
        if num_examples * largest > _FLOAT32_MAX:
            raise WireError(f"{num_examples} examples times a change of {largest:g} are beyond float32")
    mean_loss = float(_floats(tensors, "mean_loss", (1,))[0])
    return ClientUpdate(extractor, columns, num_examples, mean_loss)


def _encode(kind: Kind, envelope: Envelope, tensors: Mapping[str, Tensor]) -> bytes:
    metadata = {
        "kind": kind,
        "version": VERSION,
        "round": str(envelope.round_index),
        "client": str(envelope.client_id),
    }
    return safetensors_file.to_bytes(tensors, metadata)


def _decode(data: bytes, kind: Kind, envelope: Envelope) -> dict[str, Tensor]:
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"the message has {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        tensors, metadata = safetensors_file.from_bytes(data)
    except SafetensorsError as error:
        raise WireError(f"not a message: {error}") from None
    if set(metadata) != {"kind", "version", "round", "client"}:
        raise WireError(f"metadata has {sorted(metadata)}; expected client, kind, round and version")
    if metadata["kind"] != kind:
        known = "" if metadata["kind"] in get_args(Kind) else ", a kind this version does not know"
        raise WireError(f"the message is a {metadata['kind']!r}{known}; expected a {kind!r}")
    if metadata["version"] != VERSION:
        raise WireError(
            f"the message has format version {metadata['version']!r}; this program reads {VERSION!r}: update the older side"
        )
    for name, value in (("round", envelope.round_index), ("client", envelope.client_id)):
        if metadata[name] != str(value):
            raise WireError(f"the message is for {name} {metadata[name]!r}; expected {value}")
    return tensors


def _weights(extractor: Parameters, columns: Columns, precision: Precision) -> dict[str, Tensor]:
    arrays = {"columns": columns.weights, **{f"extractor.{name}": value for name, value in extractor.items()}}
    return {name: _narrow(name, value, precision) for name, value in arrays.items()}


def _narrow(name: str, values: FloatArray, precision: Precision) -> Tensor:
    if precision == "fp32":
        return values
    if precision == "bf16":
        return Bfloat16.from_float32(values)
    largest = float(np.abs(values).max(initial=0.0))
    if largest > float(np.finfo(np.float16).max):
        raise WireError(f"{name} holds {largest:g}, beyond fp16's 65504; send it as bf16 or fp32")
    return values.astype(np.float16)


def _weight_names(expected: Expected) -> set[str]:
    return {"columns", *(f"extractor.{name}" for name in expected.extractor_shapes)}


def _expect_names(tensors: Mapping[str, Tensor], names: set[str]) -> None:
    if set(tensors) != names:
        missing, unknown = sorted(names - set(tensors)), sorted(set(tensors) - names)
        raise WireError(f"tensors missing: {missing or 'none'}; tensors unknown: {unknown or 'none'}")


def _read_weights(
    tensors: Mapping[str, Tensor], class_ids: IntArray, expected: Expected, largest: float = _FLOAT32_MAX
) -> tuple[dict[str, FloatArray], Columns]:
    received_ids = _class_ids(tensors, expected.num_classes)
    if not np.array_equal(received_ids, class_ids):
        raise WireError(
            f"the message is about {len(received_ids)} classes that are not the {len(class_ids)} requested"
        )
    columns = Columns(class_ids, _floats(tensors, "columns", (len(class_ids), expected.column_dim), largest))
    extractor = {
        name: _floats(tensors, f"extractor.{name}", shape, largest)
        for name, shape in expected.extractor_shapes.items()
    }
    return extractor, columns


def _class_ids(tensors: Mapping[str, Tensor], num_classes: int) -> IntArray:
    class_ids = _integers(tensors, "class_ids", None)
    try:
        check_class_ids(class_ids)
    except ValueError as error:
        raise WireError(str(error)) from None
    if not class_ids.size or class_ids[-1] >= num_classes:
        raise WireError(
            f"class_ids are {class_ids[-1:]} at the most; expected 1 or more ids below {num_classes}"
        )
    return class_ids


def _integers(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...] | None) -> IntArray:
    tensor = tensors[name]
    if (
        isinstance(tensor, Bfloat16)
        or tensor.dtype != np.int64
        or (shape is not None and tensor.shape != shape)
    ):
        raise WireError(
            f"{name} is {_describe(tensor)}; expected I64 {list(shape) if shape else 'of one dimension'}"
        )
    return tensor


def _floats(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], limit: float = _FLOAT32_MAX
) -> FloatArray:
    tensor = tensors[name]
    given = tensor.bits.shape if isinstance(tensor, Bfloat16) else tensor.shape
    if given != shape or not (isinstance(tensor, Bfloat16) or tensor.dtype in (np.float32, np.float16)):
        raise WireError(f"{name} is {_describe(tensor)}; expected F32, F16 or BF16 {list(shape)}")
    values: FloatArray = (
        tensor.to_float32() if isinstance(tensor, Bfloat16) else tensor.astype(np.float32, copy=False)
    )
    largest = largest_entry(values)
    if not largest <= _FLOAT32_MAX:  # so written that NaN is caught too
        raise WireError(f"{name} holds NaN or infinity")
    if largest > limit:
        raise WireError(f"{name} reaches {largest:g}; expected at most {limit:g} (server.max_change)")
    return values


def _describe(tensor: Tensor) -> str:
    if isinstance(tensor, Bfloat16):
        return f"BF16 {list(tensor.bits.shape)}"
    return f"{tensor.dtype} {list(tensor.shape)}"
