"""The eager backend: plain torch, autograd and nothing else.  The living definition that every other backend must match."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from ondevice.contract.step_signature import Arrays
from ondevice.contract.vocabulary import FloatArray, Parameters, StepSpec
from ondevice.model.extractors import build_extractor, load_state, state_of
from ondevice.model.train_step import Embedding, TrainStep, step_outputs


class EagerBackend:
    """Torch on the CPU.  `initial` gives every tensor of the extractor; those that do not learn keep that value."""

    micro_batch: int | None = None

    def __init__(self, spec: StepSpec, initial: Parameters) -> None:
        extractor = build_extractor(spec)
        load_state(extractor, initial, f"the weights of {spec.architecture}")
        self._step = TrainStep(spec, extractor)
        self.signature = self._step.signature
        self._dense = self._step.trainable_tensors()
        self._bound: list[npt.NDArray[Any]] = []

    def step(self, arrays: Arrays) -> Arrays:
        self._bind(arrays)
        data = {spec.name: _tensor(arrays[spec.name]) for spec in self.signature.data}
        tables = [data[table].requires_grad_() for table in self.signature.table_dims]
        outputs = step_outputs(self._step(*data.values()), [*self._dense, *tables])
        return dict(zip(self.signature.outputs, (output.numpy() for output in outputs), strict=True))

    def embed(self, arrays: Arrays) -> FloatArray:
        self._bind(arrays)
        inputs = [_tensor(arrays[spec.name]) for spec in self.signature.embedded]
        with torch.no_grad():
            embeddings: FloatArray = Embedding(self._step.extractor)(*inputs).numpy()
        return embeddings

    def _bind(self, arrays: Arrays) -> None:
        """Point the module's tensors at the caller's arrays: shared memory, so it costs nothing to swap or update them."""
        dense = [arrays[spec.name] for spec in self.signature.dense]
        if len(dense) == len(self._bound) and all(a is b for a, b in zip(dense, self._bound, strict=True)):
            return
        for tensor, array in zip(self._dense, dense, strict=True):
            tensor.data = _tensor(array)
        self._bound = dense


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Shared memory, but for an array that is read-only: torch has no such tensors, and warns."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def initial_parameters(spec: StepSpec, seed: int) -> dict[str, FloatArray]:
    """Fresh weights of the whole extractor, by name."""
    module = build_extractor(spec, seed)
    return {name: tensor.detach().numpy().copy() for name, tensor in state_of(module).items()}
