"""The official ONNX Runtime training artifacts: gradients, any width, every scope."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.artifacts.runtime_artifact import bounds_of, dense_of, make_artifact, random_step_inputs

from export.onnx import training_artifacts as lower_ort_training
from export.proof.golden import build_step
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.backends.onnxruntime_training_module import OnnxruntimeTrainingBackend
from ondevice.contract.vocabulary import StepSpec

SMALL = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))


def test_steps_and_embeddings_use_the_weights_that_they_are_given(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path, SMALL, "onnxruntime-training")
    backend, weights = OnnxruntimeTrainingBackend(artifact), dense_of(artifact)
    arrays = {**weights, "images": random_step_inputs(artifact.signature, 1, 5)["images"]}
    backend.embed(arrays)
    arrays["embedding.weight"] *= -1
    expected = EagerBackend(SMALL, artifact.initial()).embed(arrays)
    np.testing.assert_allclose(backend.embed(arrays), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ValueError, match=r"conv2\.weight is float32 \[1\]; expected float32 \[64, 32, 3, 3\]"
    ):
        backend.embed({**arrays, "conv2.weight": np.zeros(1, np.float32)})


def test_the_official_files_are_all_there_and_the_last_runtime_reads_them() -> None:
    step = build_step(SMALL, initial_parameters(SMALL, 0))
    files = lower_ort_training.lower(step, bounds_of(step.signature))
    assert sorted(files) == ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]
    for name in ("eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"):
        assert onnx.load_from_string(files[name]).ir_version <= 10
    outputs = [port.name for port in onnx.load_from_string(files["training_model.onnx"]).graph.output]
    assert outputs[:3] == ["loss", "embeddings", "gradient/columns"]
