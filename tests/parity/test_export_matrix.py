"""The exported step is the step: every runtime, architecture and scope, any width, full and partial batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.artifacts.runtime_artifact import (
    MAX_WIDTH,
    MICRO_BATCH,
    dense_of,
    make_artifact,
    random_step_inputs,
)
from helpers.data.tiny_labels import FEDAVG
from helpers.data.tiny_texts import BAG, TIED, TOKEN

from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from ondevice.backends import Backend
from ondevice.backends.eager import EagerBackend
from ondevice.backends.opening import Runtime, open_backend
from ondevice.contract.artifact import Artifact
from ondevice.contract.golden_step import check_golden
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import ARCHITECTURES

pytestmark = pytest.mark.slow  # some forty exports

RUNTIMES = ("executorch", "onnxruntime", "onnxruntime-training")
IMAGE_SHAPES = {
    "mobilenet_v3_large": (3, 40, 32),  # planes down to 2 x 1
    "mobilenet_v3_small": (3, 32, 32),  # planes down to one element
    "mobilenet_v2": (3, 32, 32),
    "two_convolutions": (3, 12, 12),
    "three_convolutions": (1, 15, 17),
}
SCOPES = ("all", "last-two", "head", "norms-and-biases")
FEWER_SCOPES = {"mobilenet_v2": ("all",)}
"""Its blocks are MobileNetV3's, and so is what a scope leaves of them."""
SIZES = ((1, 1), (7, 3), (170, MICRO_BATCH), (1024, 2), (MAX_WIDTH, MICRO_BATCH), (MAX_WIDTH, 1))
"""Widths and examples."""
CASES = [
    *(
        StepSpec(architecture, 16, IMAGE_SHAPES[architecture], train=scope)
        for architecture in IMAGE_SHAPES
        for scope in FEWER_SCOPES.get(architecture, SCOPES)
    ),
    *(StepSpec("three_convolutions", 16, (1, 15, 17), logits="dot", train=scope) for scope in SCOPES),
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
    features = draw_features(exact, MICRO_BATCH, seed=1)
    for width, examples in SIZES:
        some = {name: feature[:examples] for name, feature in features.items()}
        expected = expected_step(exact, some, width, seed=width)
        comparison = check_golden(backend, weights, expected)
        assert comparison.passed, f"width {width}, {examples} examples: {comparison.explain()}"


def assert_five_steps_end_where_eager_does(artifact: Artifact, backend: Backend) -> None:
    """As far as rounding allows: what moved, moved by the same amount."""
    signature = artifact.signature
    inputs = {**dense_of(artifact), **random_step_inputs(signature, 30, 3)}
    moved = []
    for contender in (backend, EagerBackend(artifact.spec, artifact.initial())):
        arrays = {name: array.copy() for name, array in inputs.items()}
        for _ in range(5):
            outputs = contender.step(arrays)
            for name in signature.trained:
                arrays[name] -= 0.01 * outputs[gradient_of(name)]
        moved.append({name: arrays[name] - inputs[name] for name in signature.trained})
    for name, expected in moved[1].items():
        assert expected.any(), name
        distance = np.linalg.norm(moved[0][name] - expected)
        assert distance <= 2e-3 * np.linalg.norm(expected), f"{name}: {distance}"


def assert_embeddings_are_those_of_eager(artifact: Artifact, backend: Backend) -> None:
    weights = dense_of(artifact)
    drawn = random_step_inputs(artifact.signature, 1, MICRO_BATCH + 1, seed=2)
    arrays = {**weights, **{spec.name: drawn[spec.name] for spec in artifact.signature.features}}
    expected = EagerBackend(artifact.spec, artifact.initial()).embed(arrays)
    np.testing.assert_allclose(backend.embed(arrays), expected, rtol=1e-4, atol=1e-5)


def test_every_architecture_is_exported_here_or_with_the_texts() -> None:
    of_texts = {spec.architecture for spec in (BAG, FEDAVG, TIED, TOKEN)}
    assert set(IMAGE_SHAPES) | of_texts == set(ARCHITECTURES)
