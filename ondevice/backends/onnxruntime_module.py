"""The onnxruntime backend: step.onnx and embed.onnx on stock ONNX Runtime, an inference runtime.

The backward pass is part of the graph, so nothing here knows about training.  numpy and onnxruntime only: this is the
module that runs on a device.  The graph file is opened as it is, and not as a ready-optimised `.ort`: that would load
in 0.2 s instead of 0.5 s, but fixes the optimisations of the exporting machine, at the same speed per step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]  # it ships no types

from ondevice.backends import Batch, StepResult
from ondevice.backends.padding import check_step, pad_batch
from ondevice.contract.artifact import Artifact
from ondevice.contract.onnx_file import refuse_external_data
from ondevice.contract.vocabulary import FloatArray, Parameters


class OnnxruntimeBackend:
    """Weights are inputs of the graph, read where the caller's arrays lie: a new model costs nothing to load."""

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        self.spec = artifact.spec
        self.parameter_shapes = artifact.parameter_shapes
        self.micro_batch: int = artifact.micro_batch
        self._max_width = artifact.max_width
        self._threads = threads
        self._embed_path = artifact.path("embed.onnx")
        self._embed_session: Any = None
        self._session = _open(artifact.path("step.onnx"), threads)

    def step(
        self, extractor: Parameters, columns: FloatArray, adjust: FloatArray, batch: Batch
    ) -> StepResult:
        check_step(self.spec, columns, adjust, batch, self.micro_batch, self._max_width)
        padded = pad_batch(batch, self.micro_batch)
        loss, *extractor_gradients, columns_gradient = self._session.run(
            None,
            {
                **self._weights(extractor),
                "columns": columns,
                "adjust": adjust,
                "images": padded.images,
                "labels": padded.labels,
                "example_weight": padded.example_weight,
            },
        )
        return StepResult(
            loss=float(loss),
            extractor_gradients=dict(zip(self.parameter_shapes, extractor_gradients, strict=True)),
            columns_gradient=columns_gradient,
        )

    def embed(self, extractor: Parameters, images: FloatArray) -> FloatArray:
        if self._embed_session is None:  # a client that only trains never needs it
            self._embed_session = _open(self._embed_path, self._threads)
        if images.shape[1:] != self.spec.image_shape:
            raise ValueError(
                f"images are {list(images.shape)}; expected [b, {', '.join(map(str, self.spec.image_shape))}]"
            )
        weights = self._weights(extractor)
        embeddings = np.empty((len(images), self.spec.embedding_dim), np.float32)
        for start in range(0, len(images), self.micro_batch):
            some = images[start : start + self.micro_batch]
            padded = np.zeros((self.micro_batch, *self.spec.image_shape), np.float32)
            padded[: len(some)] = some
            (rows,) = self._embed_session.run(None, {**weights, "images": padded})
            embeddings[start : start + len(some)] = rows[: len(some)]
        return embeddings

    def _weights(self, extractor: Parameters) -> dict[str, FloatArray]:
        for name, shape in self.parameter_shapes.items():
            if name not in extractor or extractor[name].shape != shape:
                found = f"of shape {list(extractor[name].shape)}" if name in extractor else "missing"
                raise ValueError(f"weights: {name} is {found}; expected float32{list(shape)}, as exported")
        return {name: extractor[name] for name in self.parameter_shapes}


def _open(path: Path, threads: int) -> Any:
    refuse_external_data(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = (
        False  # plans one block for the whole step, larger than what is alive at any time
    )
    options.log_severity_level = 3  # the optimiser's remarks are not for our user
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
