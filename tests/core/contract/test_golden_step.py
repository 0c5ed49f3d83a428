"""The golden step of an artifact: right runtimes reproduce it, others do not, and one that proves nothing is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.artifacts.tiny_artifact import make_tiny_artifact

from ondevice.backends.opening import open_backend
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import (
    GOLDEN,
    Artifact,
    ArtifactError,
    write_artifact,
)
from ondevice.contract.golden_step import check_golden, compare
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import COLUMNS, FloatArray


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return make_tiny_artifact(tmp_path / "artifact")


def test_eager_passes_its_golden_step_and_a_wrong_gradient_does_not(artifact: Artifact) -> None:
    golden = artifact.golden()
    backend = open_backend(artifact, "eager")
    weights = artifact.initial()
    assert check_golden(backend, weights, golden).passed
    outputs = dict(backend.step({**weights, **golden.inputs}))
    outputs["gradient/conv2.weight"] = outputs["gradient/conv2.weight"] * np.float32(1.0001)
    comparison = compare(outputs, golden)
    assert set(comparison.beyond) == {"conv2.weight"}
    assert "conv2.weight" in comparison.explain()


@pytest.mark.parametrize("ignored", ["adjust", "example_weight"])
def test_a_runtime_that_ignores_an_input_fails_its_golden_step(ignored: str, artifact: Artifact) -> None:
    golden = artifact.golden()
    blank = {"adjust": np.zeros(7, np.float32), "example_weight": np.full(3, 1 / 3, np.float32)}[ignored]
    assert golden.inputs[ignored].shape == blank.shape
    careless = replace(golden, inputs={**golden.inputs, ignored: blank})
    backend = open_backend(artifact, "eager")
    assert not check_golden(backend, artifact.initial(), careless).passed


def test_a_result_that_is_not_a_number_fails(artifact: Artifact) -> None:
    golden = artifact.golden()
    gradients = {gradient_of(name): gradient for name, gradient in golden.gradients.items()}
    assert compare({"loss": np.array(golden.loss, np.float32), **gradients}, golden).passed
    assert set(compare({"loss": np.array(np.nan, np.float32), **gradients}, golden).beyond) == {"loss"}
    spoilt = {**gradients, "gradient/columns": gradients["gradient/columns"] * np.float32("nan")}
    assert set(compare({"loss": np.array(golden.loss, np.float32), **spoilt}, golden).beyond) == {COLUMNS}


def test_outputs_that_are_missing_or_out_of_order_are_no_step(artifact: Artifact) -> None:
    golden = artifact.golden()
    gradients = {gradient_of(name): gradient for name, gradient in golden.gradients.items()}
    with pytest.raises(ValueError, match=r"the step gave .*; expected \['loss', "):
        compare(gradients, golden)
    with pytest.raises(ValueError, match=r"the step gave .*; expected \['loss', "):
        compare({**gradients, "loss": np.array(golden.loss, np.float32)}, golden)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("eager_distance", lambda values: np.full_like(values, 1e30), "eager_distance of .* is 1e"),
        ("eager_distance", lambda values: np.full_like(values, np.nan), "eager_distance of .* is nan"),
        ("eager_distance", lambda values: values[:-1], "golden step"),
        ("eager_distance", lambda values: values[0], "golden step"),
        ("input/labels", lambda values: values + 7, "expected positions among the 7 rows of columns"),
        (
            "input/labels",
            lambda values: values.astype(np.float32),
            r"labels is float32 \[3\]; the step takes int64",
        ),
        ("input/columns", lambda values: values[:, :-1], r"columns is float32 \[7, 7\]; the step takes"),
        (
            "input/columns",
            lambda values: np.tile(values, (20, 1)),
            r"adjust is float32 \[7\]; .*rows:columns = 140",
        ),
        ("input/images", lambda values: values[:, :, :-1], r"images is uint8 \[3, 1, 15, 16\]"),
        (
            "input/images",
            lambda values: values.astype(np.float32),
            r"images is float32 .*; the step takes uint8",
        ),
        (
            "input/images",
            lambda values: np.tile(values, (2, 1, 1, 1)),
            r"labels is int64 \[3\]; .*with b = 6",
        ),
        ("input/adjust", lambda values: values[:-1], r"adjust is float32 \[6\]"),
        ("input/adjust", lambda values: values * np.inf, "adjust holds NaN or infinity"),
        ("output/gradient/conv2.weight", lambda values: values[:-1], "gradient/conv2.weight is float32"),
        ("output/gradient/conv2.weight", lambda values: values * np.inf, "holds NaN or infinity"),
        ("output/loss", lambda values: values[:0], "golden step"),
        ("output/loss", lambda values: values * np.nan, "loss holds NaN or infinity"),
        ("output/loss", lambda values: values * np.inf, "loss holds NaN or infinity"),
    ],
)
def test_a_golden_step_that_proves_nothing_is_refused(
    name: str, change: Callable[[FloatArray], FloatArray], message: str, artifact: Artifact
) -> None:
    tensors, _ = safetensors_file.read_file(artifact.path(GOLDEN))
    with np.errstate(invalid="ignore"):
        changed = {**tensors, name: np.ascontiguousarray(change(np.array(tensors[name])))}
    spoilt = write_artifact(
        artifact.directory, artifact.manifest, {GOLDEN: safetensors_file.to_bytes(changed, {})}
    )
    with pytest.raises(ArtifactError, match=message):
        spoilt.golden()


@pytest.mark.parametrize("name", ["input/images", "output/loss", "output/gradient/columns", "eager_distance"])
def test_a_golden_step_that_lacks_a_tensor_is_refused_by_its_name(name: str, artifact: Artifact) -> None:
    tensors, _ = safetensors_file.read_file(artifact.path(GOLDEN))
    rest = {kept: np.array(value) for kept, value in tensors.items() if kept != name}
    spoilt = write_artifact(
        artifact.directory, artifact.manifest, {GOLDEN: safetensors_file.to_bytes(rest, {})}
    )
    with pytest.raises(ArtifactError, match=f"has no tensor '{name}'; export it again"):
        spoilt.golden()
