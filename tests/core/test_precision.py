"""What 16 bits on the way cost a client's update: the rounding of the message, and a start that is rounded too."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny_federation import TinyFederation

from ondevice.client.client import Client
from ondevice.contract.vocabulary import Columns, FloatArray, LocalTraining, ModelSlice, RoundPlan
from ondevice.contract.wire import (
    Envelope,
    Expected,
    Precision,
    request_from_bytes,
    slice_to_bytes,
    update_from_bytes,
)

PLAN = RoundPlan(0, TinyFederation.num_classes, 10, local_training=LocalTraining(epochs=2, batch_size=4))
ENVELOPE = Envelope(0, 0)
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Of one number: half a unit in the last place of 11 and 8 bits, relative to the number; half of it again on average."""


def moved(tiny: TinyFederation, of_slice: Precision, of_update: Precision) -> FloatArray:
    """The whole update of a client whose slice and update travel in these precisions."""
    client = Client(0, tiny.clients[0], private_seed=7, precision=of_update)
    class_ids = request_from_bytes(client.request(PLAN), ENVELOPE, tiny.num_classes)
    columns = Columns(class_ids, 0.1 * TinyFederation(seed=1).columns()[class_ids])
    message = slice_to_bytes(ENVELOPE, ModelSlice(tiny.initial, columns), of_slice)
    expected = Expected(tiny.num_classes, tiny.spec.column_dim, tiny.backend.parameter_shapes)
    update = update_from_bytes(client.train(PLAN, message, tiny.backend), ENVELOPE, class_ids, expected)
    parts = [*update.extractor_delta.values(), update.columns_delta.weights]
    return np.concatenate([part.ravel() for part in parts])


def distance(found: FloatArray, expected: FloatArray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("narrow", ["fp16", "bf16"])
def test_an_update_is_the_movement_from_the_slice_that_arrived(
    tiny: TinyFederation, narrow: Precision
) -> None:
    """Had it been taken from the slice before rounding, the rounding of the *weights* would be in it."""
    from_the_same_slice = moved(tiny, narrow, "fp32")
    assert 0 < distance(moved(tiny, narrow, narrow), from_the_same_slice) < ROUNDING[narrow]


def test_what_bf16_changes_in_a_round_is_where_training_starts(tiny: TinyFederation) -> None:
    exact = moved(tiny, "fp32", "fp32")
    by_the_update = distance(moved(tiny, "fp32", "bf16"), exact)
    by_the_slice = distance(moved(tiny, "bf16", "fp32"), exact)
    assert by_the_update < ROUNDING["bf16"]
    assert 5 * by_the_update < by_the_slice < 0.3
    assert distance(moved(tiny, "bf16", "bf16"), exact) == pytest.approx(by_the_slice, rel=0.1)
