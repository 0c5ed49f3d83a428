"""The messages of a round as bytes: made and read here, but for those of `ondevice.contract.messages.lookup`.

Format version 2: a safetensors file whose metadata says `kind`, `version`, `round` and `client`.

| kind    | from   | tensors                                                                                         |
|---------|--------|-------------------------------------------------------------------------------------------------|
| plan    | server | none; the metadata has `settings` as well: the plan as JSON (`messages.plan_settings`)          |
| request | client | `rows.<table>` I64 [s]: the sorted ids of the rows it wants of every table, and nothing else     |
| rows    | client | as request, by a client that has φ of this round from a slice before: this one comes without dense |
| slice   | server | `rows.<table>` I64 [s], `table.<table>` [s, d], `side.<name>` [s], `dense.<name>`                |
| update  | client | as slice without sides, but differences client − server; `num_examples` I64 [1], `mean_loss` F32 [1] |

Weights travel as F32, or as F16 or BF16 where a transform made them so; those of an update also as int8 rows or as their
largest entries (`ondevice.contract.messages.packed_weights`).  They are float32 again once read.

Everything is checked before anything is believed or allocated: size, header, names, shapes, types, finite numbers, sorted
unique row ids in range, positive counts, and for updates the limits of what one client may do.
Whatever is wrong, the reader raises `WireError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from ondevice.contract import safetensors_file
from ondevice.contract.files.safetensors_header import Block, Header, Spec
from ondevice.contract.link import Pieces
from ondevice.contract.messages.checked_tensors import (
    FLOAT32_MAX,
    as_float32,
    expect_names,
    floats,
    integers,
    none_beyond,
    row_ids,
)

# Part of this module's interface.
from ondevice.contract.messages.checked_tensors import WireError as WireError
from ondevice.contract.messages.envelope import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from ondevice.contract.messages.envelope import Envelope as Envelope
from ondevice.contract.messages.envelope import Kind, count_of, decoded, encoded, metadata_of, opened
from ondevice.contract.messages.flat_parameters import FlatParameters
from ondevice.contract.messages.packed_weights import BadPacking, Weight, packed, unpacked
from ondevice.contract.messages.plan_settings import plan_from_settings, plan_to_settings
from ondevice.contract.safetensors_file import OnePiece, OpenFile, Tensor
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

RowIds = Mapping[str, IntArray]
"""Table -> ids."""

RequestKind = Literal["request", "rows"]
"""With φ, or without."""

Weights = Mapping[str, Weight]
"""What a transform may narrow: by their name in the message."""


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

    @cached_property
    def dense_block(self) -> Block:
        return _dense_block(tuple(self.dense.items()))

    @cached_property
    def weight_names(self) -> frozenset[str]:
        """Of all tensors that a slice and an update have in common."""
        tables = {f"{part}.{table}" for table in self.table_dims for part in ("rows", "table")}
        return frozenset({*tables, *self.dense_block.shapes})


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
    return encoded("plan", envelope, {}, {"settings": plan_to_settings(plan)})


def plan_from_bytes(data: bytes) -> tuple[Envelope, RoundPlan]:
    """The plan, and the client and round that it is for."""
    tensors = opened(data, "plan", {"settings"})
    expect_names(tensors, set())
    metadata = tensors.metadata
    envelope = Envelope(count_of(metadata, "round"), count_of(metadata, "client"))
    try:
        plan = plan_from_settings(metadata["settings"], envelope.round_index)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"not a plan that this program knows: {error}") from None
    return envelope, plan


def request_to_bytes(envelope: Envelope, ids: RowIds, kind: RequestKind = "request") -> bytes:
    for table_ids in ids.values():
        check_row_ids(table_ids)
    return encoded(kind, envelope, {f"rows.{table}": table_ids for table, table_ids in ids.items()})


def request_from_bytes(
    data: bytes, envelope: Envelope, table_sizes: Mapping[str, int], kind: RequestKind = "request"
) -> dict[str, IntArray]:
    tensors = decoded(data, kind, envelope)
    expect_names(tensors, {f"rows.{table}" for table in table_sizes})
    return {table: row_ids(tensors, table, size) for table, size in table_sizes.items()}


def slice_to_bytes(envelope: Envelope, model_slice: ModelSlice, weights: Weights | None = None) -> bytes:
    """`weights` are those of the slice as transforms left them; the slice's own where there are none."""
    return _encode_weights("slice", envelope, _ids(model_slice, model_slice.sides), model_slice, weights)


def slice_in_pieces(envelope: Envelope, rows: ModelSlice, weights: Weights, dense: OnePiece) -> Pieces:
    """The same bytes: rows and `weights` of one client, and the dense weights that all clients of a round get."""
    tensors = {**_ids(rows, rows.sides), **packed(weights)}
    *own, _ = safetensors_file.chunks(tensors, metadata_of("slice", envelope), dense)
    return Pieces(b"".join(own), dense.array)


def slice_from_bytes(data: bytes, envelope: Envelope, ids: RowIds, expected: Expected) -> ModelSlice:
    """The slice that answers the request for `ids`."""
    tensors = decoded(data, "slice", envelope)
    sides = {f"side.{name}" for name in expected.sides}
    expect_names(tensors, {*expected.weight_names, *sides})
    dense, tables = _read_weights(tensors, ids, expected)
    return ModelSlice(
        dense,
        tables,
        {name: floats(tensors, f"side.{name}", (len(ids[table]),)) for name, table in expected.sides.items()},
    )


def update_to_bytes(envelope: Envelope, update: ClientUpdate, weights: Weights | None = None) -> bytes:
    """`weights` are those of the update as transforms left them; the update's own where there are none."""
    tensors = _ids(update)
    tensors["num_examples"] = np.array([update.num_examples], np.int64)
    tensors["mean_loss"] = np.array([update.mean_loss], np.float32)
    return _encode_weights("update", envelope, tensors, update, weights)


def update_from_bytes(
    data: bytes,
    envelope: Envelope,
    ids: RowIds,
    expected: Expected,
    limits: UpdateLimits = DEFAULT_LIMITS,
) -> ClientUpdate:
    """The update for the slice of `ids` that was sent."""
    tensors: Mapping[str, Tensor] | None = _update_as_written(data, envelope, ids, expected)
    if tensors is None:
        tensors = _unpacked(decoded(data, "update", envelope), ids, expected)
        expect_names(tensors, {"num_examples", "mean_loss", *expected.weight_names})
    dense, tables = _read_weights(tensors, ids, expected, limits.max_change)
    num_examples = int(integers(tensors, "num_examples", (1,))[0])
    if not 1 <= num_examples <= limits.max_examples:
        raise WireError(
            f"num_examples is {num_examples}; expected 1 to {limits.max_examples} (server.max_examples)"
        )
    if num_examples * limits.max_change > FLOAT32_MAX:
        largest = max(map(largest_entry, (*dense.values(), *(rows.values for rows in tables.values()))))
        if num_examples * largest > FLOAT32_MAX:
            raise WireError(f"{num_examples} examples times a change of {largest:g} are beyond float32")
    mean_loss = float(floats(tensors, "mean_loss", (1,))[0])
    return ClientUpdate(dense, tables, num_examples, mean_loss)


def _update_as_written(data: bytes, envelope: Envelope, ids: RowIds, expected: Expected) -> OpenFile | None:
    """The message, if it says of itself what `update_to_bytes` would say in float32, so that its header need not be
    parsed: every honest one does, unless transforms changed its weights."""
    if len(data) > MAX_MESSAGE_BYTES or not expected.table_dims.keys() <= ids.keys():
        return None
    sizes = {table: len(ids[table]) for table in expected.table_dims}
    specs: dict[str, Spec] = {
        **{f"rows.{table}": ("I64", [size]) for table, size in sizes.items()},
        "num_examples": ("I64", [1]),
        "mean_loss": ("F32", [1]),
        **{f"table.{table}": ("F32", [size, expected.table_dims[table]]) for table, size in sizes.items()},
    }
    return OpenFile.as_written(data, Header(metadata_of("update", envelope), specs, expected.dense_block))


def weights_of(model: ModelSlice | ClientUpdate) -> dict[str, FloatArray]:
    """The weights of a message by their names in it, tables first: what transforms work on."""
    return {**_table_weights(model), **{f"dense.{name}": value for name, value in model.dense.items()}}


def _table_weights(model: ModelSlice | ClientUpdate) -> dict[str, FloatArray]:
    return {f"table.{table}": rows.values for table, rows in model.tables.items()}


def _encode_weights(
    kind: Kind,
    envelope: Envelope,
    tensors: Mapping[str, Tensor],
    model: ModelSlice | ClientUpdate,
    weights: Weights | None,
) -> bytes:
    """Behind the other tensors the weights; dense parameters that lie in one piece are copied as one."""
    metadata = metadata_of(kind, envelope)
    if weights is None and isinstance(model.dense, FlatParameters):
        dense = OnePiece(_dense_block(tuple(model.dense.shapes.items())), model.dense.flat)
        return safetensors_file.to_bytes({**tensors, **_table_weights(model)}, metadata, dense)
    given = weights_of(model) if weights is None else weights
    return safetensors_file.to_bytes({**tensors, **packed(given)}, metadata)


@lru_cache(maxsize=8)
def _dense_block(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Block:
    """Of models that a process works on; there is seldom more than one."""
    return Block({f"dense.{name}": shape for name, shape in shapes}, "F32")


def _ids(model: ModelSlice | ClientUpdate, sides: Parameters | None = None) -> dict[str, Tensor]:
    """What comes before the weights: the rows that it is about, and what is said of them."""
    ids = {f"rows.{table}": rows.ids for table, rows in model.tables.items()}
    return {**ids, **{f"side.{name}": values for name, values in (sides or {}).items()}}


def _unpacked(tensors: OpenFile, ids: RowIds, expected: Expected) -> Mapping[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {f"dense.{name}": shape for name, shape in expected.dense.items()}
    shapes |= {
        f"table.{table}": (len(ids[table]), dim) for table, dim in expected.table_dims.items() if table in ids
    }
    try:
        return unpacked(tensors, shapes)
    except BadPacking as error:
        raise WireError(str(error)) from None


def _read_weights(
    tensors: Mapping[str, Tensor], ids: RowIds, expected: Expected, limit: float = FLOAT32_MAX
) -> tuple[Parameters, dict[str, Rows]]:
    tables = {}
    for table, dim in expected.table_dims.items():
        if table not in ids:
            raise WireError(f"the message is about rows of {table}, of which none were requested")
        received = row_ids(tensors, table, expected.table_sizes[table])
        if not np.array_equal(received, ids[table]):
            raise WireError(
                f"the message is about {len(received)} rows of {table} that are not the {len(ids[table])} requested"
            )
        tables[table] = Rows(ids[table], floats(tensors, f"table.{table}", (len(received), dim), limit))
    return _read_dense(tensors, expected, limit), tables


def _read_dense(tensors: Mapping[str, Tensor], expected: Expected, limit: float) -> Parameters:
    """In one piece, if it lies so; tensor by tensor, if not, or to say what is wrong with which."""
    piece = tensors.in_one_piece(expected.dense_block) if isinstance(tensors, OpenFile) else None
    flat = None if piece is None else as_float32(piece)
    if flat is None or not none_beyond(flat, limit):
        dense = {
            name: floats(tensors, f"dense.{name}", shape, limit) for name, shape in expected.dense.items()
        }
    return dense if flat is None else FlatParameters(flat, expected.dense)
