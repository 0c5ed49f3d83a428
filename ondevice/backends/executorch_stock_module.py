"""The baseline: ExecuTorch's own joint training graph through its Python runtime, which loads torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ondevice.contract.artifact import Artifact
from ondevice.contract.step_signature import LOSS, Arrays, check_arrays, gradient_of, padded
from ondevice.contract.vocabulary import FloatArray


class ExecutorchStockBackend:
    """`stock_step.pte`.  Weights live inside the program; it hands out tensors that share their memory, and a step writes
    the caller's weights there first.  Every size is fixed, so that rows are padded as well as examples."""

    def __init__(self, artifact: Artifact, threads: int = 1) -> None:
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the module calls itself experimental on every import
            from executorch.extension.pybindings import portable_lib

        portable_lib._unsafe_reset_threadpool(threads)
        self.signature = artifact.signature
        self.micro_batch = artifact.micro_batch
        self._bounds = artifact.bounds
        self._torch = torch
        self._module = portable_lib._load_for_executorch(str(artifact.path("stock_step.pte")))
        prefixes = ("step.extractor.", "tables.")
        names = []
        for name in self._run("__et_training_fqn_forward", ()):
            names.append(
                next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)
            )
        first_gradient, first_parameter = (
            self._run(f"__et_training_{kind}_index_forward", ())[0] for kind in ("gradients", "parameters")
        )
        self._gradient_at = {name: first_gradient + i for i, name in enumerate(names)}
        # One run on zeros, to be handed the program's parameters.
        zeros = {spec.name: np.zeros(spec.sizes(self._bounds), spec.dtype) for spec in self.signature}
        self._parameters = dict(zip(names, self._forward(zeros)[first_parameter:], strict=True))

    def step(self, arrays: Arrays) -> Arrays:
        sizes = check_arrays(self.signature, arrays, self._bounds)
        full = {spec.name: padded(spec, arrays[spec.name], self._bounds) for spec in self.signature}
        for name in self.signature.trained:
            self._parameters[name].copy_(self._torch.from_numpy(full[name]))
        outputs = self._forward(full)
        results = {LOSS: outputs[0].numpy().copy().reshape(())}
        for name in self.signature.trained:
            gradient = outputs[self._gradient_at[name]].numpy().copy()
            shape = self.signature[name].sizes(sizes)
            results[gradient_of(name)] = gradient[: shape[0]] if shape else gradient
        return results

    def embed(self, arrays: Arrays) -> FloatArray:
        """It has a training graph and nothing else."""
        raise ValueError(
            f"executorch-stock cannot embed {', '.join(arrays)}: the joint graph only trains; "
            "evaluate with the executorch runtime"
        )

    def _forward(self, arrays: Arrays) -> list[Any]:
        given = [arrays[spec.name] for spec in self.signature.data if spec.role != "table"]
        return self._run(
            "forward", tuple(self._torch.from_numpy(np.ascontiguousarray(array)) for array in given)
        )

    def _run(self, method: str, inputs: tuple[Any, ...]) -> list[Any]:
        results: list[Any] = self._module.run_method(method, inputs, clone_outputs=False)
        return results
