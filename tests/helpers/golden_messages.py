"""The messages frozen in tests/golden: small enough to read with a hex viewer, read and written by Python and by C++.

`python tests/golden_messages.py` writes them anew.  That is a change of the wire format: it needs a new version number.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ondevice.contract.vocabulary import ClientUpdate, Columns, FloatArray, ModelSlice
from ondevice.contract.wire import (
    Envelope,
    Expected,
    Precision,
    request_to_bytes,
    slice_to_bytes,
    update_to_bytes,
)

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED_FILE = GOLDEN / "expected.json"
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")

ENVELOPE = Envelope(round_index=12, client_id=345)
CLASS_IDS = np.array([0, 2, 3, 7, 19], np.int64)
EXPECTED = Expected(
    num_classes=20,
    column_dim=3,
    extractor_shapes={"stem.weight": (2, 1, 2, 2), "stem.bias": (2,), "é": (1,)},
)


def _values(shape: tuple[int, ...], first: int) -> FloatArray:
    """Thirds of both signs, a subnormal of fp16 and a tie between two fp16 neighbours among them."""
    values = (np.arange(first, first + int(np.prod(shape))) / np.float32(3) - 2).astype(np.float32)
    values[0] = 3e-7
    values[-1] = 1 + 2.0**-11
    return values.reshape(shape)


def model_slice() -> ModelSlice:
    columns = Columns(CLASS_IDS, _values((len(CLASS_IDS), EXPECTED.column_dim), 0))
    extractor = {
        name: _values(shape, 10 * i) for i, (name, shape) in enumerate(EXPECTED.extractor_shapes.items())
    }
    return ModelSlice(extractor, columns)


def rounded(values: FloatArray, precision: Precision) -> FloatArray:
    """What is left of values that travelled: written out the slow way."""
    if precision == "fp16":
        return values.astype(np.float16).astype(np.float32)
    if precision == "bf16":
        bits = [int(word) for word in np.ravel(values).view(np.uint32)]
        nearest = [(word + 0x7FFF + (word >> 16 & 1)) >> 16 << 16 for word in bits]
        return np.array(nearest, np.uint32).view(np.float32).reshape(values.shape)
    return values


def messages() -> dict[str, bytes]:
    """By file name.  An update's differences are the weights of the slice of the same precision."""
    files = {"request.safetensors": request_to_bytes(ENVELOPE, CLASS_IDS)}
    for precision in PRECISIONS:
        given = model_slice()
        files[f"slice-{precision}.safetensors"] = slice_to_bytes(ENVELOPE, given, precision)
        update = ClientUpdate(
            {name: rounded(value, precision) for name, value in given.extractor.items()},
            Columns(CLASS_IDS, rounded(given.columns.weights, precision)),
            num_examples=11,
            mean_loss=0.5,
        )
        files[f"update-{precision}.safetensors"] = update_to_bytes(ENVELOPE, update, precision)
    expectation = {
        "round_index": ENVELOPE.round_index,
        "client_id": ENVELOPE.client_id,
        "class_ids": CLASS_IDS.tolist(),
        "num_classes": EXPECTED.num_classes,
        "column_dim": EXPECTED.column_dim,
        "extractor_shapes": EXPECTED.extractor_shapes,
    }
    files[EXPECTED_FILE.name] = (json.dumps(expectation, indent=1) + "\n").encode()
    return files


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, content in messages().items():
        (GOLDEN / name).write_bytes(content)
