"""The messages frozen in tests/golden: small enough to read with a hex viewer, read and written by Python and by C++.

`python tests/helpers/messages/golden_messages.py` writes them anew.  That is a change of the wire format: it needs a new
version number.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

from ondevice.client.transforms import TransformView, transformed
from ondevice.contract.choice import Choice
from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.messages.lookup import Lookup, found_to_bytes, lookup_to_bytes
from ondevice.contract.vocabulary import (
    ClientUpdate,
    FloatArray,
    LocalTraining,
    ModelSlice,
    RoundPlan,
    Rows,
)
from ondevice.contract.wire import (
    Envelope,
    Expected,
    plan_to_bytes,
    request_to_bytes,
    slice_to_bytes,
    update_to_bytes,
    weights_of,
)

GOLDEN = Path(__file__).parents[2] / "golden"
EXPECTED_FILE = GOLDEN / "expected.json"
PRECISIONS = ("fp32", "fp16", "bf16")
SEED = 20281
"""The private seed of the client whose update is rounded by chance."""

ENVELOPE = Envelope(round_index=12, client_id=345)
IDS = {"columns": np.array([0, 2, 3, 7, 19], np.int64), "tokens.é": np.array([1, 8], np.int64)}
EXPECTED = Expected(
    dense={"stem.weight": (2, 1, 2, 2), "stem.bias": (2,), "é": (1,)},
    table_sizes={"columns": 20, "tokens.é": 9},
    table_dims={"columns": 3, "tokens.é": 2},
    sides={"prior": "columns"},
)
HASHES = SimHash(num_bits=4, num_tables=3, dim=3, seed=5)
BUCKETS = np.array([0, 9, 17, 47], np.int64)
PLAN = RoundPlan(
    round_index=ENVELOPE.round_index,
    table_sizes=EXPECTED.table_sizes,
    sampler=Choice("uniform_negatives", {"num_negatives": 80, "exclude_positives": True}),
    weighting=Choice("uniform"),
    transforms=(Choice("clip", {"norm": 2.5}), Choice("precision", {"format": "bf16"})),
    local_training=LocalTraining(epochs=2, batch_size=6, learning_rate=0.05, weight_decay=1e-3, momentum=0.9),
    sides=EXPECTED.sides,
)


def _values(shape: tuple[int, ...], first: int) -> FloatArray:
    """Thirds of both signs, a subnormal of fp16 and a tie between two fp16 neighbours among them."""
    values = (np.arange(first, first + int(np.prod(shape))) / np.float32(3) - 2).astype(np.float32)
    values[0] = 3e-7
    values[-1] = 1 + 2.0**-11
    return values.reshape(shape)


def model_slice() -> ModelSlice:
    tables = {
        table: Rows(IDS[table], _values((len(IDS[table]), dim), 5 * i))
        for i, (table, dim) in enumerate(EXPECTED.table_dims.items())
    }
    dense = {name: _values(shape, 10 * i) for i, (name, shape) in enumerate(EXPECTED.dense.items())}
    sides = {side: _values((len(IDS[table]),), 3) for side, table in EXPECTED.sides.items()}
    return ModelSlice(dense, tables, sides)


def rounded(values: FloatArray, precision: str) -> FloatArray:
    """What is left of values that travelled: written out the slow way."""
    if precision == "fp16":
        return values.astype(np.float16).astype(np.float32)
    if precision == "bf16":
        bits = [int(word) for word in np.ravel(values).view(np.uint32)]
        nearest = [(word + 0x7FFF + (word >> 16 & 1)) >> 16 << 16 for word in bits]
        return np.array(nearest, np.uint32).view(np.float32).reshape(values.shape)
    return values


def update_of(given: ModelSlice, precision: str) -> ClientUpdate:
    """Its differences are the weights of a slice that travelled with this precision."""
    return ClientUpdate(
        {name: rounded(value, precision) for name, value in given.dense.items()},
        {table: Rows(rows.ids, rounded(rows.values, precision)) for table, rows in given.tables.items()},
        num_examples=11,
        mean_loss=0.5,
    )


def expectation(ids: dict[str, np.ndarray], expected: Expected) -> bytes:
    """What the native programs are told of a slice: `ondevice/native/fuzz/case.h` reads it."""
    document = {
        "round_index": ENVELOPE.round_index,
        "client_id": ENVELOPE.client_id,
        "ids": {table: rows.tolist() for table, rows in ids.items()},
        "dense": expected.dense,
        "table_sizes": expected.table_sizes,
        "table_dims": expected.table_dims,
        "sides": expected.sides,
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def messages() -> dict[str, bytes]:
    """By file name."""
    files = {
        "plan.safetensors": plan_to_bytes(ENVELOPE, PLAN),
        "request.safetensors": request_to_bytes(ENVELOPE, IDS),
        "rows.safetensors": request_to_bytes(ENVELOPE, IDS, "rows"),
        "lookup.safetensors": lookup_to_bytes(ENVELOPE, Lookup(BUCKETS, HASHES.fingerprint)),
        "found.safetensors": found_to_bytes(ENVELOPE, "columns", model_slice().tables["columns"]),
        EXPECTED_FILE.name: expectation(IDS, EXPECTED),
    }
    for precision in PRECISIONS:
        given = model_slice()
        narrow = [Choice("precision", {"format": precision})]
        files[f"slice-{precision}.safetensors"] = slice_to_bytes(
            ENVELOPE, given, transformed(weights_of(given), narrow)
        )
        update = update_of(given, precision)
        files[f"update-{precision}.safetensors"] = update_to_bytes(
            ENVELOPE, update, transformed(weights_of(update), narrow)
        )
    files["update-int8.safetensors"] = packed_update([Choice("int8")])
    files["update-top_k.safetensors"] = packed_update([Choice("top_k", {"fraction": 0.5})])
    return files


def packed_update(choices: list[Choice], seed: int = SEED) -> bytes:
    """An update whose differences are the slice's weights, as these transforms leave them."""
    update = update_of(model_slice(), "fp32")
    view = TransformView(ENVELOPE.round_index, seed)
    return update_to_bytes(ENVELOPE, update, transformed(weights_of(update), choices, view))


def mutated(message: bytes, source: random.Random) -> bytes:
    """A few bytes changed, put in, taken out or cut off."""
    data = bytearray(message)
    for _ in range(source.choice([1, 1, 2, 5])):
        at = source.randrange(len(data))
        change = source.randrange(4)
        if change == 0:
            data[at] ^= 1 << source.randrange(8)
        elif change == 1:
            data[at] = source.choice(b'0123456789"{}[],:e.-x')
        elif change == 2:
            data[at : at + 1] = source.choice([b"", b"00", b"9" * 19, b"null", b'"a":1,'])
        else:
            del data[source.randrange(len(data)) + 1 :]
    return bytes(data)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, content in messages().items():
        (GOLDEN / name).write_bytes(content)
