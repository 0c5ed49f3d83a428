"""The exported step is the step: every runtime, architecture and scope, any width, full and partial batches."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from helpers.runtime_artifact import MAX_WIDTH, MICRO_BATCH, make_artifact, random_step_inputs

from export.proof.golden import build_step, draw_images, expected_step, float64_copy
from ondevice.backends import Backend
from ondevice.backends.eager import EagerBackend
from ondevice.backends.opening import Runtime, open_backend
from ondevice.contract.artifact import Artifact
from ondevice.contract.golden_step import check_golden
from ondevice.contract.vocabulary import StepSpec, TrainScope
from ondevice.model.extractors import ARCHITECTURES

pytestmark = pytest.mark.slow  # some forty exports

RUNTIMES = ("executorch", "onnxruntime", "onnxruntime-training")
IMAGE_SHAPES = {
    "mobilenet_v3_large": (3, 40, 32),  # planes down to 2 x 1
    "mobilenet_v3_small": (3, 32, 32),  # planes down to one element
    "two_convolutions": (3, 12, 12),
    "three_convolutions": (1, 15, 17),
}
SIZES = ((1, 1), (7, 3), (170, MICRO_BATCH), (1024, 2), (MAX_WIDTH, MICRO_BATCH), (MAX_WIDTH, 1))
"""Widths and examples."""
CASES = [
    *(
        StepSpec(architecture, 16, IMAGE_SHAPES[architecture], train=scope)
        for architecture in ARCHITECTURES
        for scope in get_args(TrainScope)
    ),
    *(StepSpec("three_convolutions", 16, (1, 15, 17), "dot", scope) for scope in get_args(TrainScope)),
]


@pytest.mark.parametrize("spec", CASES, ids=lambda spec: f"{spec.architecture}-{spec.train}-{spec.logits}")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_exported_step_is_the_step(runtime: Runtime, spec: StepSpec, tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "artifact", spec, runtime)
    backend = open_backend(artifact, runtime)
    assert_loss_and_every_gradient_are_right(artifact, backend)
    assert_five_steps_end_where_eager_does(artifact, backend)
    assert_embeddings_are_those_of_eager(artifact, backend)


def assert_loss_and_every_gradient_are_right(artifact: Artifact, backend: Backend) -> None:
    weights = artifact.initial()
    exact = float64_copy(build_step(artifact.spec, weights))
    images = draw_images(exact, MICRO_BATCH, seed=1)
    for width, examples in SIZES:
        expected = expected_step(exact, images[:examples], width, seed=width)
        comparison = check_golden(backend, weights, expected)
        assert comparison.passed, f"width {width}, {examples} examples: {comparison.explain()}"


def assert_five_steps_end_where_eager_does(artifact: Artifact, backend: Backend) -> None:
    """As far as rounding allows: what moved, moved by the same amount."""
    columns, adjust, batch = random_step_inputs(artifact.spec, 30, 3)
    initial = {name: artifact.initial()[name] for name in artifact.trainable} | {"columns": columns}
    moved = []
    for contender in (backend, EagerBackend(artifact.spec, artifact.initial())):
        weights, own_columns = artifact.initial(), columns.copy()
        for _ in range(5):
            result = contender.step(weights, own_columns, adjust, batch)
            own_columns -= 0.01 * result.columns_gradient
            for name, gradient in result.extractor_gradients.items():
                weights[name] -= 0.01 * gradient
        ended = weights | {"columns": own_columns}
        moved.append({name: ended[name] - start for name, start in initial.items()})
    for name, expected in moved[1].items():
        assert expected.any(), name
        distance = np.linalg.norm(moved[0][name] - expected)
        assert distance <= 2e-3 * np.linalg.norm(expected), f"{name}: {distance}"


def assert_embeddings_are_those_of_eager(artifact: Artifact, backend: Backend) -> None:
    weights = artifact.initial()
    images = np.random.default_rng(2).standard_normal(
        (MICRO_BATCH + 1, *artifact.spec.image_shape), np.float32
    )
    expected = EagerBackend(artifact.spec, weights).embed(weights, images)
    np.testing.assert_allclose(backend.embed(weights, images), expected, rtol=1e-4, atol=1e-5)


def test_every_architecture_has_an_image_shape_here() -> None:
    assert set(IMAGE_SHAPES) == set(ARCHITECTURES)
