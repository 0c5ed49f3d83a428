"""The official ONNX Runtime training artifacts: gradients, any width, every scope."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.runtime_artifact import MAX_WIDTH, MICRO_BATCH, make_artifact

from export.onnx import training_artifacts as lower_ort_training
from export.proof.golden import build_step
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.backends.onnxruntime_training_module import OnnxruntimeTrainingBackend
from ondevice.contract.vocabulary import StepSpec

SMALL = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))


def test_steps_and_embeddings_use_the_weights_that_they_are_given(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path, SMALL, "onnxruntime-training")
    backend, weights = OnnxruntimeTrainingBackend(artifact), artifact.initial()
    images = np.random.default_rng(0).standard_normal((5, *SMALL.image_shape), np.float32)
    backend.embed(weights, images)
    weights["embedding.weight"] *= -1
    expected = EagerBackend(SMALL, weights).embed(weights, images)
    np.testing.assert_allclose(backend.embed(weights, images), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"conv2\.weight is of shape \[1\]"):
        backend.embed({**weights, "conv2.weight": np.zeros(1, np.float32)}, images)


def test_the_official_files_are_all_there_and_the_last_runtime_reads_them() -> None:
    step = build_step(SMALL, initial_parameters(SMALL, 0))
    files = lower_ort_training.lower(step, MICRO_BATCH, MAX_WIDTH)
    assert sorted(files) == ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]
    for name in ("eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"):
        assert onnx.load_from_string(files[name]).ir_version <= 10
    outputs = [port.name for port in onnx.load_from_string(files["training_model.onnx"]).graph.output]
    assert outputs[:3] == ["loss", "embeddings", "gradient/columns"]
