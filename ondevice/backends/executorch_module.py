"""ExecuTorch backends: the exported step with our kernels, and the stock joint graph as the baseline to compare with."""

from __future__ import annotations

import numpy as np

from ondevice.artifact import Artifact
from ondevice.backends import Batch, StepResult
from ondevice.native.program import Program, set_threads
from ondevice.padding import check_step, pad_batch
from ondevice.vocabulary import FloatArray, Parameters


class ExecutorchBackend:
    """`step.pte` and `embed.pte`.  Weights are inputs of every call, so a new global model is a different set of arrays."""

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        self.spec = artifact.spec
        self.parameter_shapes = artifact.parameter_shapes
        self.micro_batch = artifact.micro_batch
        self._max_width = artifact.max_width
        set_threads(threads)
        self._step = Program(artifact.path("step.pte"))
        self._embed_path = artifact.path("embed.pte")
        self._embed: Program | None = None

    def step(
        self, extractor: Parameters, columns: FloatArray, adjust: FloatArray, batch: Batch
    ) -> StepResult:
        check_step(self.spec, columns, adjust, batch, self.micro_batch, self._max_width)
        padded = pad_batch(batch, self.micro_batch)
        loss = np.empty((), np.float32)
        gradients = {name: np.empty(shape, np.float32) for name, shape in self.parameter_shapes.items()}
        room = np.empty((self._max_width, self.spec.column_dim), np.float32)  # the runtime asks for the most
        data = (columns, adjust, padded.images, padded.labels, padded.example_weight)
        inputs = [np.ascontiguousarray(array) for array in (*self._tensors(extractor), *data)]
        self._step.run(inputs, [loss, *gradients.values(), room])
        return StepResult(float(loss), gradients, room[: len(columns)])

    def embed(self, extractor: Parameters, images: FloatArray) -> FloatArray:
        if self._embed is None:
            self._embed = Program(self._embed_path)  # only evaluation needs it, and its arena
        tensors = self._tensors(extractor)
        embeddings = np.empty((len(images), self.spec.embedding_dim), np.float32)
        for first in range(0, len(images), self.micro_batch):
            part = images[first : first + self.micro_batch]
            padded = np.zeros((self.micro_batch, *self.spec.image_shape), np.float32)
            padded[: len(part)] = part
            out = np.empty((self.micro_batch, self.spec.embedding_dim), np.float32)
            self._embed.run([*tensors, padded], [out])
            embeddings[first : first + len(part)] = out[: len(part)]
        return embeddings

    def _tensors(self, extractor: Parameters) -> list[FloatArray]:
        """In contract order, each of the shape that the program was exported for: the runtime would not notice."""
        tensors = [extractor[name] for name in self.parameter_shapes]
        for (name, shape), tensor in zip(self.parameter_shapes.items(), tensors, strict=True):
            if tensor.shape != shape:
                raise ValueError(f"{name} has shape {tensor.shape}; the step takes {shape}")
        return tensors
