"""The onnxruntime-training backend: the official training artifacts through ONNX Runtime's training API.

The API keeps parameters and gradients in buffers of its own: a step copies the weights in and the gradients out.  The
rows of tables are plain inputs, so that any number of them will do (`export.onnx.training_artifacts`).  Importing the API
imports torch, and upstream ended it with release 1.19.2; it is here to compare with and for those who already use it.
"""

from __future__ import annotations

import numpy as np
from onnxruntime import SessionOptions
from onnxruntime.training.api import CheckpointState, Module

from ondevice.backends.pieces import check_features, embed_in_pieces
from ondevice.contract.artifact import Artifact, ArtifactError
from ondevice.contract.artifacts.onnx_file import refuse_external_data
from ondevice.contract.step_signature import (
    EXAMPLES,
    LOSS,
    Arrays,
    check_arrays,
    gradient_of,
    padded,
    rows_of,
)
from ondevice.contract.vocabulary import FloatArray


class OnnxruntimeTrainingBackend:
    """`ort_training/`: training model, eval model and checkpoint; our client's own SGD replaces the optimizer model."""

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        self.signature = artifact.signature
        self.micro_batch: int = artifact.micro_batch
        self._bounds = artifact.bounds
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # the optimiser's remarks are not for our user
        for model in ("training_model.onnx", "eval_model.onnx"):
            refuse_external_data(artifact.path(f"ort_training/{model}"))
        beside = artifact.path("ort_training/checkpoint").with_name("checkpoint.data")
        if beside.exists():  # what a checkpoint reads too, if it says so
            raise ArtifactError(
                f"{beside} is not part of the artifact; remove it, or copy the artifact again"
            )
        self._state = CheckpointState.load_checkpoint(artifact.path("ort_training/checkpoint"))
        self._module = Module(
            artifact.path("ort_training/training_model.onnx"),
            self._state,
            artifact.path("ort_training/eval_model.onnx"),
            session_options=options,
        )

    def step(self, arrays: Arrays) -> Arrays:
        check_arrays(self.signature, arrays, self._bounds)
        self._load(arrays)
        self._module.train()
        self._module.lazy_reset_grad()
        full = {EXAMPLES: self.micro_batch}
        data = [padded(spec, arrays[spec.name], full) for spec in self.signature.data]
        loss, _, *rest = self._module(*data)
        # Copied: the runtime writes the next step's over them.
        gradients = {
            spec.name: np.array(self._state.parameters[spec.name].grad) for spec in self.signature.dense
        }
        # Behind the tables' gradients come the runtime's own buffers.
        gradients |= dict(zip(self.signature.table_dims, rest, strict=False))
        return {
            LOSS: np.reshape(loss, ()),
            **{gradient_of(name): gradients[name] for name in self.signature.trained},
        }

    def embed(self, arrays: Arrays) -> FloatArray:
        """The eval model gives loss and embeddings; one row of zeros stands in for a table that no feature reads."""
        check_features(self.signature, arrays)
        self._load(arrays)
        self._module.eval()
        read = {spec.name: arrays[spec.name] for spec in self.signature.embedded if spec.role == "table"}
        rows = {
            rows_of(table): len(read[table]) if table in read else 1 for table in self.signature.table_dims
        }
        sizes = {**rows, EXAMPLES: self.micro_batch}
        blank = {spec.name: np.zeros(spec.sizes(sizes), spec.dtype) for spec in self.signature.data} | read

        def run(features: Arrays) -> FloatArray:
            _, rows = self._module(*{**blank, **features}.values())
            return np.asarray(rows)

        return embed_in_pieces(self.signature, arrays, self.micro_batch, run)

    def _load(self, arrays: Arrays) -> None:
        for spec in self.signature.dense:
            self._state.parameters[spec.name] = arrays[spec.name]
