"""Opening a backend by the name of its runtime: the one place that imports a runtime, and only the one asked for.

A process that steps through ExecuTorch or stock ONNX Runtime therefore never loads torch, which alone takes more memory
than the training step.
"""

from __future__ import annotations

from typing import Literal, get_args

from ondevice.backends import Backend
from ondevice.contract.artifact import Artifact

Runtime = Literal["executorch", "onnxruntime", "onnxruntime-training", "executorch-stock"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
"""What an artifact can be exported for, the default on devices first; the last is the baseline to compare with."""

WITHOUT_TORCH: tuple[Runtime, ...] = ("executorch", "onnxruntime")
"""Runtimes that a phone has; the Python modules of the others load torch, so their memory here says nothing of a phone."""


def open_backend(artifact: Artifact, runtime: str, threads: int = 1) -> Backend:
    """The step of `artifact` on one of its runtimes, or on `eager` torch, which needs no exported program."""
    if runtime != "eager" and runtime not in artifact.manifest.runtimes:
        available = ", ".join(["eager", *artifact.manifest.runtimes])
        raise ValueError(f"runtime is {runtime!r}; {artifact.directory} was exported for {available}")
    if threads < 1:
        raise ValueError(f"threads is {threads}; expected 1 or more")
    if runtime == "executorch":
        from ondevice.backends.executorch_module import ExecutorchBackend

        return ExecutorchBackend(artifact, threads)
    if runtime == "executorch-stock":
        from ondevice.backends.executorch_stock_module import ExecutorchStockBackend

        return ExecutorchStockBackend(artifact, threads)
    if runtime == "onnxruntime":
        from ondevice.backends.onnxruntime_module import OnnxruntimeBackend

        return OnnxruntimeBackend(artifact, threads)
    if runtime == "onnxruntime-training":
        from ondevice.backends.onnxruntime_training_module import OnnxruntimeTrainingBackend

        return OnnxruntimeTrainingBackend(artifact, threads)
    import torch

    from ondevice.backends.eager import EagerBackend

    torch.set_num_threads(threads)
    return EagerBackend(artifact.spec, artifact.initial())
