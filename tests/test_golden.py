"""The golden step: the truth in float64, over examples that no rounding can push across a kink."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from export.golden import _KinkClearance, build_step, draw_images, expected_step, float64_copy
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.golden_step import check_golden
from ondevice.vocabulary import EXCLUDED, FloatArray, StepSpec

SPEC = StepSpec("mobilenet_v3_small", embedding_dim=8, image_shape=(3, 32, 32))


def clearance(images: FloatArray, spec: StepSpec) -> float:
    step = float64_copy(build_step(spec, initial_parameters(spec, 0)))
    with _KinkClearance() as watch, torch.no_grad():
        step.extractor(torch.from_numpy(images).double())
    return float(watch.per_example.min())


def test_chosen_examples_stay_clear_of_kinks_where_others_do_not() -> None:
    step = float64_copy(build_step(SPEC, initial_parameters(SPEC, 0)))
    chosen = clearance(draw_images(step, 3, seed=0), SPEC)
    anything = clearance(np.random.default_rng(0).standard_normal((12, 3, 32, 32), np.float32), SPEC)
    assert chosen > anything  # the very candidates that the three were chosen from
    assert chosen > 2e-7  # float32 rounds activations of about 1 to 1e-7


def test_every_activation_with_a_kink_is_watched() -> None:
    inputs = torch.tensor([[0.25, 5.0], [2.0, -2.0]])
    for activation, nearest in (
        ("relu", [0.25, 2.0]),
        ("hardswish", [2.0, 1.0]),
        ("hardsigmoid", [2.0, 1.0]),
    ):
        with _KinkClearance() as watch:
            getattr(torch.nn.functional, activation)(inputs)
        np.testing.assert_allclose(watch.per_example, nearest)


@pytest.mark.parametrize("train", ["all", "last-two", "head"])
@pytest.mark.parametrize("logits", ["cosine", "dot"])
@pytest.mark.parametrize("width", [1, 2, 9])
def test_eager_reproduces_the_expected_step(train: str, logits: str, width: int) -> None:
    spec = StepSpec("three_convolutions", 8, (1, 16, 16), logits, train)  # type: ignore[arg-type] # parametrized
    weights = initial_parameters(spec, 1)
    step = float64_copy(build_step(spec, weights))
    golden = expected_step(step, draw_images(step, 6, seed=2), width, seed=3)
    assert list(golden.gradients) == [*step.trainable, "columns"]
    comparison = check_golden(EagerBackend(spec, weights), weights, golden)
    assert comparison.passed, comparison.explain()


def test_padding_is_part_of_the_step_and_no_label_points_at_it() -> None:
    step = float64_copy(build_step(SPEC, initial_parameters(SPEC, 0)))
    golden = expected_step(step, np.zeros((5, 3, 32, 32), np.float32), width=4, seed=0)
    assert golden.adjust[-1] == EXCLUDED
    assert golden.batch.labels.max() < 3
    assert not golden.gradients["columns"][-1].any()
    assert golden.batch.example_weight.sum() == pytest.approx(1)
    assert len(set(golden.batch.example_weight)) == 5
