"""The eager backend: plain torch, autograd and nothing else.  The living definition that every other backend must match."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ondevice.backends import Batch, StepResult
from ondevice.contract.vocabulary import FloatArray, Parameters, StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep, loss_and_gradients


class EagerBackend:
    """Torch on the CPU.  `initial` gives every tensor of the extractor; those that do not learn keep that value."""

    micro_batch: int | None = None

    def __init__(self, spec: StepSpec, initial: Parameters) -> None:
        extractor = build_extractor(spec)
        expected = {name: tuple(tensor.shape) for name, tensor in extractor.named_parameters()}
        check_parameters(initial, expected, f"the weights of {spec.architecture}")
        extractor.load_state_dict(
            {name: torch.from_numpy(np.array(value)) for name, value in initial.items()}
        )
        self.spec = spec
        self._step = TrainStep(spec, extractor)
        self.parameter_shapes = {name: expected[name] for name in self._step.trainable}
        self._tensors = self._step.trainable_tensors()
        self._bound: list[FloatArray] = []

    def step(
        self, extractor: Parameters, columns: FloatArray, adjust: FloatArray, batch: Batch
    ) -> StepResult:
        self._bind(extractor)
        columns_leaf = torch.from_numpy(columns).requires_grad_()
        loss = self._step(
            columns_leaf,
            torch.from_numpy(adjust),
            torch.from_numpy(batch.images),
            torch.from_numpy(batch.labels),
            torch.from_numpy(batch.example_weight),
        )
        loss, extractor_gradients, columns_gradient = loss_and_gradients(loss, self._tensors, columns_leaf)
        named = zip(self.parameter_shapes, extractor_gradients, strict=True)
        return StepResult(
            loss=loss.item(),
            extractor_gradients={name: gradient.numpy() for name, gradient in named},
            columns_gradient=columns_gradient.numpy(),
        )

    def embed(self, extractor: Parameters, images: FloatArray) -> FloatArray:
        self._bind(extractor)
        with torch.no_grad():
            embeddings: FloatArray = self._step.extractor(torch.from_numpy(images)).numpy()
        return embeddings

    def _bind(self, extractor: Parameters) -> None:
        """Point the module's tensors at the caller's arrays: shared memory, so it costs nothing to swap or update them."""
        arrays = [extractor[name] for name in self.parameter_shapes]
        if len(arrays) == len(self._bound) and all(a is b for a, b in zip(arrays, self._bound, strict=True)):
            return
        for tensor, array in zip(self._tensors, arrays, strict=True):
            tensor.data = torch.from_numpy(array)
        self._bound = arrays


def initial_parameters(spec: StepSpec, seed: int) -> dict[str, FloatArray]:
    """Fresh weights of the whole extractor, by name."""
    module = build_extractor(spec, seed)
    return {name: tensor.detach().numpy().copy() for name, tensor in module.named_parameters()}


def check_parameters(given: Parameters, expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Same names, same shapes; says which tensor is missing, unknown or of another shape."""
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    if missing or unknown:
        raise ValueError(f"{what}: missing tensors {missing or 'none'}, unknown tensors {unknown or 'none'}")
    for name, shape in expected.items():
        if given[name].shape != shape:
            raise ValueError(f"{what}: {name} has shape {given[name].shape}, expected {shape}")
