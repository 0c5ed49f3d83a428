"""The messages of a round as bytes: the only place where they are made or read.

Format version 2: a safetensors file whose metadata says `kind`, `version`, `round` and `client`.

| kind    | from   | tensors                                                                                         |
|---------|--------|-------------------------------------------------------------------------------------------------|
| plan    | server | none; the metadata has `settings` as well: the plan as JSON (`ondevice.contract.plan_settings`)  |
| request | client | `rows.<table>` I64 [s]: the sorted ids of the rows it wants of every table, and nothing else     |
| slice   | server | `rows.<table>` I64 [s], `table.<table>` [s, d], `side.<name>` [s], `dense.<name>`                |
| update  | client | as slice without sides, but differences client − server; `num_examples` I64 [1], `mean_loss` F32 [1] |

Weights travel as F32, or as F16 or BF16 where a transform made them so; they are float32 again once read.

Everything is checked before anything is believed or allocated: size, header, names, shapes, types, finite numbers, sorted
unique row ids in range, positive counts, and for updates the limits of what one client may do.
Whatever is wrong, the reader raises `WireError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from ondevice.contract import safetensors_file
from ondevice.contract.plain_text import plain_text
from ondevice.contract.plan_settings import plan_from_settings, plan_to_settings
from ondevice.contract.safetensors_file import Bfloat16, SafetensorsError, Tensor
from ondevice.contract.vocabulary import (
    ClientUpdate,
    FloatArray,
    IntArray,
    ModelSlice,
    Parameters,
    RoundPlan,
    Rows,
    check_row_ids,
    largest_entry,
)

VERSION = "2"
MAX_MESSAGE_BYTES = 1 << 30
_FLOAT32_MAX = float(np.finfo(np.float32).max)

Kind = Literal["plan", "request", "slice", "update"]

RowIds = Mapping[str, IntArray]
"""Table -> ids."""

Weights = Mapping[str, Tensor]
"""What a transform may narrow: tensors by their name in the message."""


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
    """What the reader of a model knows already: how many rows the tables have, and the shape of everything."""

    dense: Mapping[str, tuple[int, ...]]
    table_sizes: Mapping[str, int]
    """Table -> rows that it has on the server."""
    table_dims: Mapping[str, int]
    """Table -> entries of one row."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """Side array -> the table whose rows it is about."""


@dataclass(frozen=True)
class UpdateLimits:
    """What one client may do to a round.  The mean of a round is summed in float32 and weighted by what clients say of
    themselves: without limits one entry of 3e38, or one claim of 2^62 examples, would *be* the mean."""

    max_examples: int = 100_000
    """The number of examples that a client may claim: its weight in the mean."""
    max_change: float = 1e4
    """The largest |entry| of a difference.  Weights are of the order of 1: a client beyond this has diverged, or lies."""


DEFAULT_LIMITS = UpdateLimits()


def plan_to_bytes(envelope: Envelope, plan: RoundPlan) -> bytes:
    return _encode("plan", envelope, {}, {"settings": plan_to_settings(plan)})


def plan_from_bytes(data: bytes) -> tuple[Envelope, RoundPlan]:
    """The plan, and the client and round that it is for."""
    tensors, metadata = _read(data, "plan", {"settings"})
    _expect_names(tensors, set())
    envelope = Envelope(_count(metadata, "round"), _count(metadata, "client"))
    try:
        plan = plan_from_settings(metadata["settings"], envelope.round_index)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"not a plan that this program knows: {error}") from None
    return envelope, plan


def request_to_bytes(envelope: Envelope, ids: RowIds) -> bytes:
    for table_ids in ids.values():
        check_row_ids(table_ids)
    return _encode("request", envelope, {f"rows.{table}": table_ids for table, table_ids in ids.items()})


def request_from_bytes(
    data: bytes, envelope: Envelope, table_sizes: Mapping[str, int]
) -> dict[str, IntArray]:
    tensors = _decode(data, "request", envelope)
    _expect_names(tensors, {f"rows.{table}" for table in table_sizes})
    return {table: _row_ids(tensors, table, size) for table, size in table_sizes.items()}


def slice_to_bytes(envelope: Envelope, model_slice: ModelSlice, weights: Weights | None = None) -> bytes:
    """`weights` are those of the slice as transforms left them; the slice's own where there are none."""
    tensors = _ids(model_slice.tables)
    tensors |= {f"side.{name}": values for name, values in model_slice.sides.items()}
    tensors |= weights if weights is not None else weights_of(model_slice)
    return _encode("slice", envelope, tensors)


def slice_from_bytes(data: bytes, envelope: Envelope, ids: RowIds, expected: Expected) -> ModelSlice:
    """The slice that answers the request for `ids`."""
    tensors = _decode(data, "slice", envelope)
    sides = {f"side.{name}" for name in expected.sides}
    _expect_names(tensors, {*_weight_names(expected), *sides})
    dense, tables = _read_weights(tensors, ids, expected)
    return ModelSlice(
        dense,
        tables,
        {
            name: _floats(tensors, f"side.{name}", (len(ids[table]),))
            for name, table in expected.sides.items()
        },
    )


def update_to_bytes(envelope: Envelope, update: ClientUpdate, weights: Weights | None = None) -> bytes:
    """`weights` are those of the update as transforms left them; the update's own where there are none."""
    return _encode(
        "update",
        envelope,
        {
            **_ids(update.tables),
            "num_examples": np.array([update.num_examples], np.int64),
            "mean_loss": np.array([update.mean_loss], np.float32),
            **(weights if weights is not None else weights_of(update)),
        },
    )


def update_from_bytes(
    data: bytes,
    envelope: Envelope,
    ids: RowIds,
    expected: Expected,
    limits: UpdateLimits = DEFAULT_LIMITS,
) -> ClientUpdate:
    """The update for the slice of `ids` that was sent."""
    tensors = _decode(data, "update", envelope)
    _expect_names(tensors, {"num_examples", "mean_loss", *_weight_names(expected)})
    dense, tables = _read_weights(tensors, ids, expected, limits.max_change)
    num_examples = int(_integers(tensors, "num_examples", (1,))[0])
    if not 1 <= num_examples <= limits.max_examples:
        raise WireError(
            f"num_examples is {num_examples}; expected 1 to {limits.max_examples} (server.max_examples)"
        )
    if num_examples * limits.max_change > _FLOAT32_MAX:
        largest = max(map(largest_entry, (*dense.values(), *(rows.values for rows in tables.values()))))
        if num_examples * largest > _FLOAT32_MAX:
            raise WireError(f"{num_examples} examples times a change of {largest:g} are beyond float32")
    mean_loss = float(_floats(tensors, "mean_loss", (1,))[0])
    return ClientUpdate(dense, tables, num_examples, mean_loss)


def weights_of(model: ModelSlice | ClientUpdate) -> dict[str, FloatArray]:
    """The weights of a message by their names in it, tables first: what transforms work on."""
    tables = {f"table.{table}": rows.values for table, rows in model.tables.items()}
    return {**tables, **{f"dense.{name}": value for name, value in model.dense.items()}}


def _encode(
    kind: Kind, envelope: Envelope, tensors: Mapping[str, Tensor], more: Mapping[str, str] | None = None
) -> bytes:
    metadata = {
        "kind": kind,
        "version": VERSION,
        "round": str(envelope.round_index),
        "client": str(envelope.client_id),
        **(more or {}),
    }
    return safetensors_file.to_bytes(tensors, metadata)


def _decode(data: bytes, kind: Kind, envelope: Envelope) -> dict[str, Tensor]:
    tensors, metadata = _read(data, kind, set())
    for name, value in (("round", envelope.round_index), ("client", envelope.client_id)):
        if metadata[name] != str(value):
            raise WireError(f"the message is for {name} {metadata[name]!r}; expected {value}")
    return tensors


def _read(data: bytes, kind: Kind, more: set[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A message of this kind, its envelope not looked at yet."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"the message has {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        tensors, metadata = safetensors_file.from_bytes(data)
    except SafetensorsError as error:
        raise WireError(f"not a message: {error}") from None
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
    return tensors, metadata


def _count(metadata: Mapping[str, str], name: str) -> int:
    text = metadata[name]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise WireError(f"{name} is {text!r}; expected a whole number, 0 or more")
    return int(text)


def _ids(tables: Mapping[str, Rows]) -> dict[str, Tensor]:
    return {f"rows.{table}": rows.ids for table, rows in tables.items()}


def _weight_names(expected: Expected) -> set[str]:
    tables = {f"{part}.{table}" for table in expected.table_dims for part in ("rows", "table")}
    return {*tables, *(f"dense.{name}" for name in expected.dense)}


def _expect_names(tensors: Mapping[str, Tensor], names: set[str]) -> None:
    if set(tensors) != names:
        missing, unknown = sorted(names - set(tensors)), sorted(set(tensors) - names)
        raise WireError(f"tensors missing: {missing or 'none'}; tensors unknown: {unknown or 'none'}")


def _read_weights(
    tensors: Mapping[str, Tensor], ids: RowIds, expected: Expected, limit: float = _FLOAT32_MAX
) -> tuple[Parameters, dict[str, Rows]]:
    tables = {}
    for table, dim in expected.table_dims.items():
        if table not in ids:
            raise WireError(f"the message is about rows of {table}, of which none were requested")
        received = _row_ids(tensors, table, expected.table_sizes[table])
        if not np.array_equal(received, ids[table]):
            raise WireError(
                f"the message is about {len(received)} rows of {table} that are not the {len(ids[table])} requested"
            )
        tables[table] = Rows(ids[table], _floats(tensors, f"table.{table}", (len(received), dim), limit))
    dense = {name: _floats(tensors, f"dense.{name}", shape, limit) for name, shape in expected.dense.items()}
    return dense, tables


def _row_ids(tensors: Mapping[str, Tensor], table: str, size: int) -> IntArray:
    ids = _integers(tensors, f"rows.{table}", None)
    try:
        check_row_ids(ids)
    except ValueError as error:
        raise WireError(f"{table}: {error}") from None
    if not ids.size or ids[-1] >= size:
        raise WireError(f"the rows of {table} reach to {ids[-1:]}; expected 1 or more ids below {size}")
    return ids


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
