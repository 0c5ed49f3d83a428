"""Timed steps on made-up examples: JSON lines, one when the step is open, one per step, one at the end.

The same lines, the same step (the gradients of one batch, no optimizer's update) and the same made-up examples as in
`ondevice/native/client/program/bench.cpp`, so that the figures and the losses of the two clients can be compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ondevice.backends import Backend
from ondevice.client.local_training import LocalSgd
from ondevice.contract.artifact import Artifact
from ondevice.contract.step_signature import (
    EXAMPLES,
    LOSS,
    Arrays,
    ArraySpec,
    StepSignature,
    gradient_of,
    rows_of,
)
from ondevice.contract.vocabulary import FloatArray, LocalTraining


@dataclass(frozen=True)
class BenchJob:
    """What to step."""

    width: int
    """Rows of every table."""
    batch: int
    micro_batch: int
    steps: int
    warmup: int
    threads: int


def bench(artifact: Artifact, job: BenchJob, open_step: Callable[[Artifact, int], Backend]) -> None:
    started = time.perf_counter()
    backend = open_step(artifact, job.threads)
    load_ms = 1e3 * (time.perf_counter() - started)
    signature = backend.signature
    started = time.perf_counter()
    initial = artifact.initial()
    dense = {name: initial[name] for name in signature.dense_shapes}
    swap_ms = 1e3 * (time.perf_counter() - started)
    inputs = {**dense, **made_up_rows(signature, job)}
    sizes = {"width": job.width, "batch": job.batch, "micro_batch": job.micro_batch, "threads": job.threads}
    say(event="ready", runtime="onnxruntime", load_ms=load_ms, swap_ms=swap_ms, **sizes)
    for step in range(job.warmup + job.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        gradients = LocalSgd(LocalTraining(), [])
        loss = 0.0
        for first in range(0, job.batch, job.micro_batch):
            result = backend.step({**inputs, **made_up_examples(signature, job, first)})
            gradients.accumulate([result[gradient_of(name)] for name in signature.trained])
            loss += float(result[LOSS])
        say(
            event="step",
            step=step,
            warmup=step < job.warmup,
            wall_ms=1e3 * (time.perf_counter() - wall),
            cpu_ms=1e3 * (time.process_time() - cpu),
            loss=loss,
            peak_footprint_bytes=peak_footprint_bytes(),
        )
    say(event="done", peak_footprint_bytes=peak_footprint_bytes())


def made_up_rows(signature: StepSignature, job: BenchJob) -> Arrays:
    """Tables, and side arrays that change nothing."""
    rows = {rows_of(table): job.width for table in signature.table_dims}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for spec in signature.of_role("table", "side"):
        shape = spec.sizes(rows)
        arrays[spec.name] = (
            np.zeros(shape, np.float32)
            if spec.role == "side"
            else (made_up(np.arange(np.prod(shape))) - np.float32(0.5)).reshape(shape)
        )
    return arrays


def made_up_examples(signature: StepSignature, job: BenchJob, first: int) -> Arrays:
    """Features, labels, noise and weights of examples `first` and on, as many as one step takes."""
    sizes = {EXAMPLES: min(job.micro_batch, job.batch - first)}
    return {
        spec.name: _made_up_array(spec, spec.sizes(sizes), first, job)
        for spec in signature.of_role("feature", "label", "noise", "example_weight")
    }


def _made_up_array(spec: ArraySpec, shape: tuple[int, ...], first: int, job: BenchJob) -> npt.NDArray[Any]:
    count, per_example = shape[0], int(np.prod(shape[1:]))
    if spec.role == "example_weight":
        return np.full(shape, 1 / job.batch, np.float32)
    if spec.role == "label" and spec.dtype == "int64":
        examples = np.arange(first, first + count) % job.width
        return np.repeat(examples, per_example).reshape(shape)
    # The number of every element among those of all examples.
    index = np.arange(first * per_example, (first + count) * per_example)
    if spec.role == "noise":
        return made_up(index).reshape(shape)
    if spec.dtype == "float32":
        return (2 * made_up(index) - np.float32(1)).reshape(shape)
    # Where nothing is said of the range: 0 is a value that every vocabulary has.
    below = (
        job.width if spec.positions_in is not None else spec.below or (256 if spec.dtype == "uint8" else 1)
    )
    numbers = _hash(index) >> np.uint32(24) if spec.dtype == "uint8" else index
    return (numbers % below).astype(spec.dtype).reshape(shape)


def made_up(index: npt.NDArray[np.int64]) -> FloatArray:
    """The top bits of a multiplicative hash: about uniform in 0..1, exact in float32."""
    return (_hash(index) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _hash(index: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    return index.astype(np.uint32) * np.uint32(2654435761)


def peak_footprint_bytes() -> int:
    """The larger of VmHWM and VmRSS + VmSwap now, because a phone moves pages to compressed swap.  0 without /proc."""
    kilobytes = {"VmHWM": 0, "VmRSS": 0, "VmSwap": 0}
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        name, _, value = line.partition(":")
        if name in kilobytes:
            kilobytes[name] = int(value.split()[0])
    return 1024 * max(kilobytes["VmHWM"], kilobytes["VmRSS"] + kilobytes["VmSwap"])


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)
