"""Opening a backend by the name of its runtime: the one place that imports a runtime, and only the one asked for.

A process that steps through ExecuTorch or stock ONNX Runtime therefore never loads torch, which alone takes more memory
than the training step.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

from ondevice.backends import Backend
from ondevice.backends.per_length import open_every_length
from ondevice.contract.artifact import Artifact
from ondevice.model.extractors.foreign import code_of_strangers

Runtime = Literal["executorch", "onnxruntime", "onnxruntime-training", "executorch-stock"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
"""What an artifact can be exported for, the default on devices first; the last is the baseline to compare with."""

WITHOUT_TORCH: tuple[Runtime, ...] = ("executorch", "onnxruntime")
"""Runtimes that a phone has; the Python modules of the others load torch, so their memory here says nothing of a phone."""


def open_backend(artifact: Artifact, runtime: str, threads: int = 1, trusted: str = "") -> Backend:
    """The step of `artifact` on one of its runtimes, or on `eager` torch, which needs no exported program.

    `trusted`: the network from elsewhere whose code eager may run, by the name that the artifact has for it.
    """
    if runtime != "eager" and runtime not in artifact.manifest.runtimes:
        available = ", ".join(["eager", *artifact.manifest.runtimes])
        raise ValueError(f"runtime is {runtime!r}; {artifact.directory} was exported for {available}")
    if threads < 1:
        raise ValueError(f"threads is {threads}; expected 1 or more")
    if runtime != "eager":
        return open_every_length(artifact, partial(_open_exported, runtime=runtime, threads=threads))
    if needs_trust(artifact, trusted):
        raise ValueError(
            f"runtime is 'eager', which would run the code of {needs_trust(artifact, trusted)}; an artifact may not ask "
            f"for that: name it as code that you trust, or choose one of {', '.join(artifact.manifest.runtimes)}"
        )
    import torch

    from ondevice.backends.eager import EagerBackend

    torch.set_num_threads(threads)
    return EagerBackend(artifact.spec, artifact.initial())


def _open_exported(artifact: Artifact, runtime: str, threads: int) -> Backend:
    """The programs of one length."""
    if runtime == "executorch":
        from ondevice.backends.executorch_module import ExecutorchBackend

        return ExecutorchBackend(artifact, threads)
    if runtime == "executorch-stock":
        from ondevice.backends.executorch_stock_module import ExecutorchStockBackend

        return ExecutorchStockBackend(artifact, threads)
    if runtime == "onnxruntime":
        from ondevice.backends.onnxruntime_module import OnnxruntimeBackend

        return OnnxruntimeBackend(artifact, threads)
    from ondevice.backends.onnxruntime_training_module import OnnxruntimeTrainingBackend

    return OnnxruntimeTrainingBackend(artifact, threads)


def needs_trust(artifact: Artifact, trusted: str) -> str:
    """The code that eager would run and that nobody here has vouched for by its name; empty where there is none."""
    return ", ".join(
        name for name in code_of_strangers(artifact.spec) if name not in trusted.replace(" ", "").split(",")
    )
