"""What 16 bits on the way cost a client's update: the rounding of the message, and a start that is rounded too."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, tiny_plan

from ondevice.client.client import Client
from ondevice.client.questions import expected_slice
from ondevice.client.transforms import transformed
from ondevice.contract import wire
from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import COLUMNS, FloatArray, IntArray, LocalTraining, ModelSlice, Rows
from ondevice.contract.wire import Envelope

TRAINING = LocalTraining(epochs=2, batch_size=4)
ENVELOPE = Envelope(0, 0)
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Of one number: half a unit in the last place of 11 and 8 bits, relative to the number; half of it again on average."""


def moved(tiny: TinyFederation, of_slice: str, of_update: str) -> FloatArray:
    """The whole update of a client whose slice and update travel in these precisions."""
    narrow_slice, narrow_update = (Choice("precision", {"format": name}) for name in (of_slice, of_update))
    plan = tiny_plan(0, 10, TRAINING, (narrow_update,))
    asked: dict[str, IntArray] = {}

    def answer(question: bytes) -> bytes:
        asked.update(wire.request_from_bytes(question, ENVELOPE, plan.table_sizes))
        rows = Rows(asked[COLUMNS], 0.1 * TinyFederation(seed=1).columns()[asked[COLUMNS]])
        model_slice = ModelSlice(tiny.initial, {COLUMNS: rows})
        weights = transformed(wire.weights_of(model_slice), [narrow_slice])
        return wire.slice_to_bytes(ENVELOPE, model_slice, weights)

    message = Client(0, tiny.clients[0], 7, lambda: tiny.backend).converse(plan, answer)
    update = wire.update_from_bytes(message, ENVELOPE, asked, expected_slice(tiny.backend, plan))
    parts = [*update.dense.values(), update.tables[COLUMNS].values]
    return np.concatenate([part.ravel() for part in parts])


def distance(found: FloatArray, expected: FloatArray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("narrow", ["fp16", "bf16"])
def test_an_update_is_the_movement_from_the_slice_that_arrived(tiny: TinyFederation, narrow: str) -> None:
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
