"""ExecuTorch backends: the exported step with our kernels, and the stock joint graph as the baseline to compare with."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ondevice.backends import Batch, StepResult
from ondevice.backends.padding import check_step, pad_batch, pad_columns
from ondevice.contract.artifact import Artifact
from ondevice.contract.vocabulary import FloatArray, Parameters
from ondevice.native.runtime.program import Program, set_threads


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


class ExecutorchStockBackend:
    """`stock_step.pte`: ExecuTorch's own joint training graph through its Python runtime, which loads torch.

    Weights live inside the program; it hands out tensors that share their memory, and a step writes the caller's weights
    there first.
    """

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the module calls itself experimental on every import
            from executorch.extension.pybindings import portable_lib  # type: ignore[import-untyped]

        portable_lib._unsafe_reset_threadpool(threads)
        self.spec = artifact.spec
        self.parameter_shapes = artifact.parameter_shapes
        self.micro_batch = artifact.micro_batch
        self._max_width = artifact.max_width
        self._torch = torch
        self._module = portable_lib._load_for_executorch(str(artifact.path("stock_step.pte")))
        names = [name.removeprefix("step.extractor.") for name in self._run("__et_training_fqn_forward", ())]
        first_gradient, first_parameter = (
            self._run(f"__et_training_{kind}_index_forward", ())[0] for kind in ("gradients", "parameters")
        )
        self._gradient_at = {name: first_gradient + i for i, name in enumerate(names)}
        # One run on zeros, to be handed the program's parameters.
        outputs = self._forward(
            np.zeros(self._max_width, np.float32),
            Batch(
                np.zeros((self.micro_batch, *self.spec.image_shape), np.float32),
                np.zeros(self.micro_batch, np.int64),
                np.zeros(self.micro_batch, np.float32),
            ),
        )
        self._parameters = dict(zip(names, outputs[first_parameter:], strict=True))

    def step(
        self, extractor: Parameters, columns: FloatArray, adjust: FloatArray, batch: Batch
    ) -> StepResult:
        check_step(self.spec, columns, adjust, batch, self.micro_batch, self._max_width)
        all_columns, all_adjust = pad_columns(columns, adjust, self._max_width)
        for name in self.parameter_shapes:
            self._parameters[name].copy_(self._torch.from_numpy(extractor[name]))
        self._parameters["columns"].copy_(self._torch.from_numpy(all_columns))
        outputs = self._forward(all_adjust, pad_batch(batch, self.micro_batch))
        gradients = {name: outputs[at].numpy().copy() for name, at in self._gradient_at.items()}
        columns_gradient = gradients.pop("columns")[: len(columns)]
        return StepResult(
            float(outputs[0]), {name: gradients[name] for name in self.parameter_shapes}, columns_gradient
        )

    def embed(self, extractor: Parameters, images: FloatArray) -> FloatArray:
        """It has a training graph and nothing else."""
        raise ValueError(
            f"executorch-stock cannot embed {len(images)} images with {len(extractor)} tensors: "
            "the joint graph only trains; evaluate with the executorch runtime"
        )

    def _forward(self, adjust: FloatArray, batch: Batch) -> list[Any]:
        arrays = (adjust, batch.images, batch.labels, batch.example_weight)
        return self._run(
            "forward", tuple(self._torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        )

    def _run(self, method: str, inputs: tuple[Any, ...]) -> list[Any]:
        results: list[Any] = self._module.run_method(method, inputs, clone_outputs=False)
        return results
