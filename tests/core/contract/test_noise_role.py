"""Noise as a role of the signature: what it may be, what it is padded with, which numbers it may hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ondevice.contract.step_signature import (
    EXAMPLES,
    ArraySpec,
    StepSignature,
    check_arrays,
    padded,
    signature_from_document,
)

IMAGES = ArraySpec("images", "feature", (EXAMPLES, 2), "uint8")
NOISE = ArraySpec("noise/model.3", "noise", (EXAMPLES, 3))
WEIGHT = ArraySpec("example_weight", "example_weight", (EXAMPLES,))
SIGNATURE = StepSignature((IMAGES, NOISE, WEIGHT))


def test_noise_goes_through_a_document_and_is_padded_with_what_keeps_everything() -> None:
    assert signature_from_document(json.loads(json.dumps(SIGNATURE.to_document()))) == SIGNATURE
    assert SIGNATURE.noise == (NOISE,)
    assert padded(NOISE, np.full((1, 3), np.float32(0.9)), {EXAMPLES: 2})[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "uint8"},
        {"shape": [3, 3]},
        {"shape": [EXAMPLES, EXAMPLES]},
        {"padding": 0.5},
    ],
)
def test_what_cannot_be_noise_is_refused(changes: dict[str, Any]) -> None:
    document = SIGNATURE.to_document()
    document[1] |= changes
    with pytest.raises(ValueError, match=r"noise/model\.3 is .*; a noise input is float32 \[b, \.\.\.\]"):
        signature_from_document(document)


def test_noise_stands_before_the_weights_and_behind_features() -> None:
    for wrong in ((NOISE, IMAGES, WEIGHT), (IMAGES, WEIGHT, NOISE)):
        with pytest.raises(
            ValueError, match="expected dense, table, side, feature, label, noise, example_weight"
        ):
            StepSignature(wrong)


@pytest.mark.parametrize("wrong", [1.0, -1e-9, float("nan"), float("inf")])
def test_a_number_that_is_no_chance_is_refused(wrong: float) -> None:
    numbers = np.array([[0, 0.5, 1 - 2**-24]], np.float32)
    arrays: dict[str, Any] = {
        "images": np.zeros((1, 2), np.uint8),
        "noise/model.3": numbers,
        "example_weight": np.ones(1, np.float32),
    }
    check_arrays(SIGNATURE, arrays, {EXAMPLES: 4})
    numbers[0, 1] = wrong
    with pytest.raises(ValueError, match=r"noise/model\.3 holds .*; expected numbers from 0 to below 1"):
        check_arrays(SIGNATURE, arrays, {EXAMPLES: 4})
