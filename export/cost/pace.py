"""How long a step takes beside eager torch, and how much of it ExecuTorch's portable kernels take, which know no vectors.

A few steps of a full micro-batch, turn by turn with eager: a program of fixed size is as slow over fewer examples, and eager
is not.  What is slow is said when the artifact is made, with what to do about it, and stays in the manifest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from export.proof.kinks import in_precision
from ondevice.backends import Backend
from ondevice.backends.executorch_module import ExecutorchBackend
from ondevice.backends.opening import open_backend
from ondevice.contract.artifact import Artifact
from ondevice.contract.artifacts.pace import Pace
from ondevice.contract.artifacts.program_calls import STEP_CALLS, program_calls_from_bytes
from ondevice.contract.golden_step import GoldenStep
from ondevice.model.train_step import TrainStep, step_outputs

TURNS = 3
OURS = "fedss::"


def measure_pace(
    artifact: Artifact, runtimes: Sequence[str], step: TrainStep, full: GoldenStep
) -> dict[str, Pace]:
    """Of every runtime, turn by turn with eager; the best of a few.  `full` has as many examples as a program takes."""
    weights = artifact.initial()
    arrays = {name: weights[name] for name in artifact.signature.dense_shapes} | dict(full.inputs)
    backends: dict[str, Backend] = {
        runtime: ExecutorchBackend(artifact, profiled=True)
        if runtime == "executorch"
        else open_backend(artifact, runtime)
        for runtime in runtimes
    }
    eager = float("inf")
    best = dict.fromkeys(runtimes, float("inf"))
    shares: dict[str, Mapping[str, float]] = {}
    for _ in range(TURNS):
        eager = min(eager, _cpu_seconds(lambda: _eager(step, full)))
        for runtime, backend in backends.items():
            taken = _cpu_seconds(lambda backend=backend: backend.step(arrays))  # type: ignore[misc]
            if taken < best[runtime]:
                best[runtime] = taken
                if isinstance(backend, ExecutorchBackend):
                    shares[runtime] = _portable(artifact, backend.nanoseconds())
    return {runtime: Pace(best[runtime] / eager, shares.get(runtime, {})) for runtime in runtimes}


def _portable(artifact: Artifact, measured: Sequence[int]) -> dict[str, float]:
    calls = program_calls_from_bytes(artifact.path(STEP_CALLS).read_bytes(), artifact.bounds)
    total = sum(measured) or 1
    spent: Counter[str] = Counter()
    for call in calls.calls:
        if not call.operator.startswith(OURS) and call.instruction < len(measured):
            spent[call.operator] += measured[call.instruction]
    return {name: nanoseconds / total for name, nanoseconds in spent.most_common()}


def _eager(step: TrainStep, full: GoldenStep) -> None:
    data = {name: in_precision(array, torch.float32) for name, array in full.inputs.items()}
    tables = [data[table].requires_grad_() for table in step.signature.table_dims]
    step_outputs(step(*data.values()), [*step.trainable_tensors(), *tables])


def _cpu_seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started
