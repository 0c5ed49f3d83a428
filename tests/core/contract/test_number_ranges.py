"""Whole numbers have a range: a token that no vocabulary has is refused before a runtime reads there."""

from __future__ import annotations

import json

import numpy as np
import pytest

from export.proof.golden import draw_feature
from ondevice.backends.pieces import check_features
from ondevice.contract.step_signature import (
    EXAMPLES,
    ArraySpec,
    StepSignature,
    check_arrays,
    signature_from_document,
)

RANGED = StepSignature(
    (
        ArraySpec("tokens", "feature", (EXAMPLES, 3), "int64", below=50),
        ArraySpec("day", "feature", (EXAMPLES,), "uint8", padding=2, below=7),
        ArraySpec("example_weight", "example_weight", (EXAMPLES,)),
    )
)


def test_a_range_goes_round_in_the_document() -> None:
    document = RANGED.to_document()
    assert [entry["below"] for entry in document] == [50, 7, None]
    assert signature_from_document(json.loads(json.dumps(document))) == RANGED


def test_the_golden_step_draws_the_whole_range() -> None:
    random = np.random.default_rng(0)
    drawn = np.stack([draw_feature(RANGED["tokens"], position, random) for position in range(500)])
    assert set(drawn.flat) == set(range(50))
    assert not drawn[1::2, -1].any(), "every second example is shorter than the others"
    assert drawn[::2, -1].any()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", 50, "tokens holds 50; expected 0 to 49: make the data with the vocabulary"),
        ("tokens", -1, "tokens holds -1; expected 0 to 49"),
        ("day", 7, "day holds 7; expected 0 to 6"),
    ],
)
def test_a_number_out_of_its_range_is_refused_before_a_runtime_reads_there(
    name: str, value: int, message: str
) -> None:
    arrays = {
        "tokens": np.full((2, 3), 49),
        "day": np.full(2, 6, np.uint8),
        "example_weight": np.ones(2, np.float32),
    }
    assert check_arrays(RANGED, arrays, {}) == {"b": 2}
    check_features(RANGED, arrays)
    arrays[name].flat[1] = value
    with pytest.raises(ValueError, match=message):
        check_arrays(RANGED, arrays, {})
    with pytest.raises(ValueError, match=message):
        check_features(RANGED, arrays)
