"""Steps of other shapes than the paper's: several tables, features that are no images, pixels normalised by channel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.artifacts.runtime_artifact import (
    MAX_WIDTH,
    MICRO_BATCH,
    dense_of,
    make_artifact,
    random_step_inputs,
)
from helpers.networks.toy_models import COARSE, TWO_TABLES, VECTORS, register_toy_models

from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from ondevice.backends import Backend
from ondevice.backends.eager import EagerBackend
from ondevice.backends.opening import RUNTIMES, Runtime, open_backend
from ondevice.contract.artifact import Artifact, open_artifact
from ondevice.contract.golden_step import SLACK, GoldenStep, check_golden
from ondevice.contract.step_signature import EXAMPLES, rows_of, symbol_values
from ondevice.contract.vocabulary import COLUMNS, StepSpec

IMAGENET = {"pixel_mean": (0.485, 0.456, 0.406), "pixel_deviation": (0.229, 0.224, 0.225)}
SPECS = {
    "pixels by channel": StepSpec("three_convolutions", 8, (3, 12, 14), **IMAGENET),  # type: ignore[arg-type]
    "two tables": StepSpec("three_convolutions", 8, (1, 9, 11), objective=TWO_TABLES),
    "vectors": StepSpec(VECTORS, 8),
    "vectors, two tables": StepSpec(VECTORS, 8, objective=TWO_TABLES),
}
SIZES = ((1, 1), (7, 3), (MAX_WIDTH, MICRO_BATCH))
"""Rows and examples."""


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    register_toy_models(monkeypatch)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_exported_step_is_the_step(runtime: Runtime, spec: StepSpec, tmp_path: Path) -> None:
    make_artifact(tmp_path / "artifact", spec, runtime)
    artifact = open_artifact(tmp_path / "artifact")  # as another process reads it
    backend = open_backend(artifact, runtime)
    assert backend.signature == build_step(spec, artifact.initial()).signature
    assert_loss_and_every_gradient_are_right(artifact, runtime, backend)
    if runtime != "executorch-stock":  # it only trains
        assert_embeddings_are_those_of_eager(artifact, backend)


def assert_loss_and_every_gradient_are_right(artifact: Artifact, runtime: str, backend: Backend) -> None:
    weights = artifact.initial()
    exact = float64_copy(build_step(artifact.spec, weights))
    features = draw_features(exact, MICRO_BATCH, seed=1)
    steps = []
    for rows, examples in SIZES:
        some = {name: feature[:examples] for name, feature in features.items()}
        steps.append(expected_step(exact, some, rows, seed=rows))
    if COARSE in artifact.signature.table_dims:
        steps.append(with_fewer_coarse_rows(artifact, steps[1]))
    for step in [artifact.golden(), *steps]:
        comparison = check_golden(backend, weights, step, SLACK.get(runtime, 1.0))
        assert comparison.passed, f"{step.describe()}: {comparison.explain()}"


def with_fewer_coarse_rows(artifact: Artifact, step: GoldenStep) -> GoldenStep:
    """The same step over fewer rows of the second table than of the first, expected by eager in float64."""
    inputs = dict(step.inputs)
    inputs["coarse_labels"] = np.minimum(inputs["coarse_labels"], 3)
    inputs[COARSE], inputs["coarse_adjust"] = inputs[COARSE][:4], inputs["coarse_adjust"][:4]
    sizes = symbol_values(artifact.signature, {**dense_of(artifact), **inputs})
    assert sizes == {EXAMPLES: 3, rows_of(COLUMNS): 7, rows_of(COARSE): 4}
    exact = float64_copy(build_step(artifact.spec, artifact.initial()))
    given = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in ((name, torch.from_numpy(array)) for name, array in inputs.items())
    }
    tables = [given[table].requires_grad_() for table in artifact.signature.table_dims]
    loss = exact(*given.values())
    gradients = torch.autograd.grad(loss, [*exact.trainable_tensors(), *tables])
    return GoldenStep(
        inputs=inputs,
        loss=float(loss.detach()),
        gradients={
            name: gradient.float().numpy()
            for name, gradient in zip(artifact.signature.trained, gradients, strict=True)
        },
        eager_distance=step.eager_distance,
    )


def assert_embeddings_are_those_of_eager(artifact: Artifact, backend: Backend) -> None:
    drawn = random_step_inputs(artifact.signature, 1, MICRO_BATCH + 1, seed=2)
    features = {spec.name: drawn[spec.name] for spec in artifact.signature.features}
    arrays = {**dense_of(artifact), **features}
    expected = EagerBackend(artifact.spec, artifact.initial()).embed(arrays)
    np.testing.assert_allclose(backend.embed(arrays), expected, rtol=1e-4, atol=1e-5)


def test_pixels_reach_the_network_as_its_weights_were_trained_on() -> None:
    """torchvision's transform: x / 255, minus the mean, over the deviation, channel by channel."""
    from ondevice.model.pixels import Pixels

    images = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 4), np.uint8)
    mean, deviation = (np.array(IMAGENET[name])[:, None, None] for name in ("pixel_mean", "pixel_deviation"))
    found = Pixels(SPECS["pixels by channel"])(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, (images / 255 - mean) / deviation, rtol=0, atol=1e-6)
