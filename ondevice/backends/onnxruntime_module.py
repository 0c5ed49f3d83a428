"""The onnxruntime backend: step.onnx and embed.onnx on stock ONNX Runtime, an inference runtime.

The backward pass is part of the graph, so nothing here knows about training.  numpy and onnxruntime only: this is the
module that runs on a device.  The graph file is opened as it is, and not as a ready-optimised `.ort`: that would load
in 0.2 s instead of 0.5 s, but fixes the optimisations of the exporting machine, at the same speed per step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ondevice.backends.pieces import check_features, embed_in_pieces
from ondevice.contract.artifact import Artifact
from ondevice.contract.artifacts.onnx_file import refuse_external_data
from ondevice.contract.step_signature import EXAMPLES, Arrays, check_arrays, padded
from ondevice.contract.vocabulary import FloatArray


class OnnxruntimeBackend:
    """Weights are inputs of the graph, read where the caller's arrays lie: a new model costs nothing to load."""

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        self.signature = artifact.signature
        self.micro_batch: int = artifact.micro_batch
        self._bounds = artifact.bounds
        self._threads = threads
        self._embed_path = artifact.path("embed.onnx")
        self._embed_session: Any = None
        self._session = _open(artifact.path("step.onnx"), threads)

    def step(self, arrays: Arrays) -> Arrays:
        check_arrays(self.signature, arrays, self._bounds)
        full = {EXAMPLES: self.micro_batch}
        inputs = {spec.name: padded(spec, arrays[spec.name], full) for spec in self.signature}
        return dict(zip(self.signature.outputs, self._session.run(None, inputs), strict=True))

    def embed(self, arrays: Arrays) -> FloatArray:
        check_features(self.signature, arrays)
        if self._embed_session is None:  # a client that only trains never needs it
            self._embed_session = _open(self._embed_path, self._threads)
        features = {spec.name for spec in self.signature.features}
        given = (*self.signature.dense, *self.signature.embedded)
        weights = {spec.name: arrays[spec.name] for spec in given if spec.name not in features}

        def run(features: Arrays) -> FloatArray:
            (rows,) = self._embed_session.run(None, {**weights, **features})
            return np.asarray(rows)

        return embed_in_pieces(self.signature, arrays, self.micro_batch, run)


def _open(path: Path, threads: int) -> Any:
    refuse_external_data(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # It plans one block for the whole step, larger than what is alive at any time.
    options.enable_mem_pattern = False
    # It keeps a buffer that is free in the forward pass for a value of the same size in the backward pass.
    options.enable_mem_reuse = False
    options.log_severity_level = 3  # the optimiser's remarks are not for our user
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
