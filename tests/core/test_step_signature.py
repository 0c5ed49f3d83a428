"""Padding changes neither loss nor gradients, and a step that cannot be is refused before a runtime sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ondevice.backends.padding import check_step, pad_batch, pad_columns

from ondevice.backends import Batch
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.contract.vocabulary import FloatArray, StepSpec

SPEC = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))


def a_step(examples: int = 3, width: int = 5) -> tuple[FloatArray, FloatArray, Batch]:
    random = np.random.default_rng(0)
    return (
        random.standard_normal((width, SPEC.column_dim), np.float32),
        random.uniform(0, 2, width).astype(np.float32),
        Batch(
            random.standard_normal((examples, 1, 16, 16), np.float32),
            random.integers(0, width, examples),
            np.full(examples, 1 / examples, np.float32),
        ),
    )


def test_padded_examples_and_classes_change_nothing() -> None:
    weights = initial_parameters(SPEC, 0)
    backend = EagerBackend(SPEC, weights)
    columns, adjust, batch = a_step()
    plain = backend.step(weights, columns, adjust, batch)
    padded = backend.step(weights, *pad_columns(columns, adjust, 9), pad_batch(batch, 4))
    assert padded.loss == pytest.approx(plain.loss, rel=1e-6)
    for name, gradient in plain.extractor_gradients.items():
        np.testing.assert_allclose(
            padded.extractor_gradients[name], gradient, atol=1e-5
        )  # sums in another order
    np.testing.assert_allclose(
        padded.columns_gradient[:5], plain.columns_gradient, atol=1e-5
    )  # sums in another order
    assert not padded.columns_gradient[5:].any()


def test_what_fits_is_not_copied() -> None:
    columns, adjust, batch = a_step()
    assert pad_batch(batch, 3) is batch
    assert pad_columns(columns, adjust, 5)[0] is columns


def test_a_step_at_the_limits_is_accepted() -> None:
    check_step(SPEC, *a_step(examples=4, width=7), micro_batch=4, max_width=7)
    check_step(SPEC, *a_step(examples=1, width=1), micro_batch=4, max_width=7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"images": np.zeros((3, 1, 32, 32), np.float32)},
            r"images are float32\[3, 1, 32, 32\]; .* \[b, 1, 16, 16\]",
        ),
        ({"images": np.zeros((3, 1, 16, 16))}, "images are float64"),
        ({"labels": np.array([0, 5, 0])}, "labels reach from 0 to 5; expected positions among the 5 columns"),
        ({"labels": np.array([0, -1, 0])}, "labels reach from -1"),
        ({"labels": np.zeros(2, np.int64)}, r"labels are int64\[2\]; expected int64 \[3\]"),
        ({"example_weight": np.zeros(3)}, "example_weight is float64"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    columns, adjust, batch = a_step()
    with pytest.raises(ValueError, match=message):
        check_step(SPEC, columns, adjust, replace(batch, **changes), micro_batch=4, max_width=7)


@pytest.mark.parametrize(
    ("examples", "width", "message"),
    [
        (5, 5, "5 examples; one step takes 1 to 4"),
        (3, 8, "8 columns; the step takes 1 to 7: export with a --max-width of 8"),
    ],
)
def test_more_than_was_exported_for_is_refused(examples: int, width: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_step(SPEC, *a_step(examples, width), micro_batch=4, max_width=7)


def test_columns_and_adjustments_must_match_the_step() -> None:
    columns, adjust, batch = a_step()
    with pytest.raises(ValueError, match=r"columns are float32\[5, 7\]; expected float32 \[m, 8\]"):
        check_step(SPEC, columns[:, :7], adjust, batch, micro_batch=4, max_width=7)
    with pytest.raises(ValueError, match=r"adjust is float32\[4\]; expected float32 \[5\]"):
        check_step(SPEC, columns, adjust[:4], batch, micro_batch=4, max_width=7)
    empty = Batch(batch.images[:0], batch.labels[:0], batch.example_weight[:0])
    with pytest.raises(ValueError, match="0 examples; one step takes 1 to 4"):
        check_step(SPEC, columns, adjust, empty, micro_batch=4, max_width=7)
