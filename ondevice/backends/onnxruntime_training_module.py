"""The onnxruntime-training backend: the official training artifacts through ONNX Runtime's training API.

The API keeps parameters and gradients in buffers of its own: a step copies the weights in and the gradients out.  The
columns are a plain input, so that any number of them will do (`export.onnx.training_artifacts`).  Importing the API imports
torch, and upstream ended it with release 1.19.2; it is here to compare with and for those who already use it.
"""

from __future__ import annotations

import numpy as np
from onnxruntime import SessionOptions  # type: ignore[import-untyped]  # it ships no types
from onnxruntime.training.api import CheckpointState, Module  # type: ignore[import-untyped]

from ondevice.backends import Batch, StepResult
from ondevice.backends.padding import check_step, pad_batch
from ondevice.contract.artifact import Artifact, ArtifactError
from ondevice.contract.onnx_file import refuse_external_data
from ondevice.contract.vocabulary import FloatArray, Parameters


class OnnxruntimeTrainingBackend:
    """`ort_training/`: training model, eval model and checkpoint; our client's own SGD replaces the optimizer model."""

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        self.spec = artifact.spec
        self.parameter_shapes = artifact.parameter_shapes
        self.micro_batch: int = artifact.micro_batch
        self._max_width = artifact.max_width
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

    def step(
        self, extractor: Parameters, columns: FloatArray, adjust: FloatArray, batch: Batch
    ) -> StepResult:
        check_step(self.spec, columns, adjust, batch, self.micro_batch, self._max_width)
        self._load(extractor)
        padded = pad_batch(batch, self.micro_batch)
        self._module.train()
        self._module.lazy_reset_grad()
        loss, _, columns_gradient, *_ = self._module(
            columns, adjust, padded.images, padded.labels, padded.example_weight
        )
        parameters = self._state.parameters
        return StepResult(
            loss=float(loss),
            extractor_gradients={name: parameters[name].grad for name in self.parameter_shapes},
            columns_gradient=columns_gradient,
        )

    def embed(self, extractor: Parameters, images: FloatArray) -> FloatArray:
        """The eval model gives loss and embeddings; one excluded column stands in for the classes."""
        if images.shape[1:] != self.spec.image_shape:
            expected = ", ".join(map(str, self.spec.image_shape))
            raise ValueError(f"images are {list(images.shape)}; expected [b, {expected}]")
        self._load(extractor)
        self._module.eval()
        columns, adjust = np.zeros((1, self.spec.column_dim), np.float32), np.zeros(1, np.float32)
        embeddings = np.empty((len(images), self.spec.embedding_dim), np.float32)
        for start in range(0, len(images), self.micro_batch):
            some = images[start : start + self.micro_batch]
            no_labels = Batch(some, np.zeros(len(some), np.int64), np.zeros(len(some), np.float32))
            padded = pad_batch(no_labels, self.micro_batch)
            _, rows = self._module(columns, adjust, padded.images, padded.labels, padded.example_weight)
            embeddings[start : start + len(some)] = rows[: len(some)]
        return embeddings

    def _load(self, extractor: Parameters) -> None:
        for name, shape in self.parameter_shapes.items():
            if name not in extractor or extractor[name].shape != shape:
                found = f"of shape {list(extractor[name].shape)}" if name in extractor else "missing"
                raise ValueError(f"weights: {name} is {found}; expected float32{list(shape)}, as exported")
            self._state.parameters[name] = extractor[name]
