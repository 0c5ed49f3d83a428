"""A message of every kind, of a model with two tables and a side array, and how to read and to spoil it."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from ondevice.client.transforms import TransformView, transformed
from ondevice.contract import wire
from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import ClientUpdate, LocalTraining, ModelSlice, RoundPlan, Rows
from ondevice.contract.wire import Envelope, Expected

ENVELOPE = Envelope(round_index=3, client_id=7)
IDS = {"columns": np.array([2, 5, 11]), "words": np.array([0, 4])}
EXPECTED = Expected(
    dense={"conv": (2, 3), "bias": (2,)},
    table_sizes={"columns": 12, "words": 5},
    table_dims={"columns": 4, "words": 3},
    sides={"prior": "columns"},
)
RNG = np.random.default_rng(0)
DENSE = {name: RNG.standard_normal(shape, np.float32) for name, shape in EXPECTED.dense.items()}
VALUES = {
    table: RNG.standard_normal((len(IDS[table]), d), np.float32) for table, d in EXPECTED.table_dims.items()
}
TABLES = {table: Rows(IDS[table], VALUES[table]) for table in IDS}

PLAN = RoundPlan(
    round_index=ENVELOPE.round_index,
    table_sizes=EXPECTED.table_sizes,
    sampler=Choice("uniform_negatives", {"num_negatives": 80, "exclude_positives": True}),
    weighting=Choice("uniform"),
    transforms=(Choice("clip", {"norm": 0.5}), Choice("precision", {"format": "bf16"})),
    local_training=LocalTraining(2, 16, 0.1, 1e-4, 0.9),
)
SLICE = ModelSlice(DENSE, TABLES, {"prior": np.array([0.5, 0.25, 0.25], np.float32)})
UPDATE = ClientUpdate(DENSE, TABLES, num_examples=17, mean_loss=1.5)
REQUEST = wire.request_to_bytes(ENVELOPE, IDS)

PACKED = {
    "update in int8": [Choice("int8")],
    "update of the largest": [Choice("top_k", {"fraction": 0.5})],
    "update of the largest in int8": [Choice("top_k", {"fraction": 0.5}), Choice("int8")],
}
KINDS = ("plan", "request", "slice", "update", *PACKED)


def encoded(kind: str) -> bytes:
    """The valid message of this kind."""
    if kind in PACKED:
        weights = transformed(wire.weights_of(UPDATE), PACKED[kind], TransformView(ENVELOPE.round_index, 5))
        return wire.update_to_bytes(ENVELOPE, UPDATE, weights)
    return {
        "plan": lambda: wire.plan_to_bytes(ENVELOPE, PLAN),
        "request": lambda: REQUEST,
        "slice": lambda: wire.slice_to_bytes(ENVELOPE, SLICE),
        "update": lambda: wire.update_to_bytes(ENVELOPE, UPDATE),
    }[kind]()


def read(kind: str, message: bytes) -> None:
    """Read it as a message of this kind.  What is accepted must be sound."""
    if kind == "plan":
        envelope, plan = wire.plan_from_bytes(message)
        assert plan.round_index == envelope.round_index >= 0
        assert envelope.client_id >= 0
        assert all(type(size) is int and size >= 1 for size in plan.table_sizes.values())
        assert all(
            isinstance(choice.name, str) for choice in (plan.sampler, plan.weighting, *plan.transforms)
        )
        assert np.isfinite(plan.local_training.learning_rate)
    elif kind == "request":
        ids = wire.request_from_bytes(message, ENVELOPE, EXPECTED.table_sizes)
        for table, size in EXPECTED.table_sizes.items():
            assert len(ids[table])
            assert ids[table].min() >= 0
            assert ids[table].max() < size
            assert (np.diff(ids[table]) > 0).all()
    elif kind == "slice":
        model_slice = wire.slice_from_bytes(message, ENVELOPE, IDS, EXPECTED)
        _assert_sound_weights(model_slice)
        assert model_slice.sides["prior"].shape == (3,)
        assert np.isfinite(model_slice.sides["prior"]).all()
    else:
        update = wire.update_from_bytes(message, ENVELOPE, IDS, EXPECTED)
        _assert_sound_weights(update)
        assert update.num_examples >= 1
        assert np.isfinite(update.mean_loss)


def _assert_sound_weights(model: ModelSlice | ClientUpdate) -> None:
    shapes = {f"dense.{name}": shape for name, shape in EXPECTED.dense.items()}
    shapes |= {f"table.{table}": values.shape for table, values in VALUES.items()}
    weights = wire.weights_of(model)
    assert {name: value.shape for name, value in weights.items()} == shapes
    assert all(np.isfinite(value).all() for value in weights.values())


def parts(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and body."""
    (size,) = struct.unpack("<Q", message[:8])
    return json.loads(message[8 : 8 + size]), message[8 + size :]


def assembled(header: Any, body: bytes) -> bytes:
    return assembled_text(json.dumps(header)) + body


def assembled_text(header: str) -> bytes:
    return struct.pack("<Q", len(header.encode())) + header.encode()
