"""Timed steps on made-up examples: JSON lines, one when the step is open, one a step, one at the end.

The same lines, the same step (the gradients of one batch, no optimizer's update) and the same made-up examples as in
`ondevice/native/client/bench.cpp`, so that the figures and the losses of the two clients can be compared.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ondevice.backends import Batch
from ondevice.backends.onnxruntime_module import OnnxruntimeBackend
from ondevice.client.local_training import LocalSgd
from ondevice.contract.artifact import Artifact
from ondevice.contract.vocabulary import FloatArray, LocalTraining


@dataclass(frozen=True)
class BenchJob:
    """What to step."""

    width: int
    batch: int
    micro_batch: int
    steps: int
    warmup: int
    threads: int


def bench(artifact: Artifact, job: BenchJob) -> None:
    started = time.perf_counter()
    backend = OnnxruntimeBackend(artifact, job.threads)
    load_ms = 1e3 * (time.perf_counter() - started)
    started = time.perf_counter()
    weights = artifact.initial()
    extractor = {name: weights[name] for name in backend.parameter_shapes}
    swap_ms = 1e3 * (time.perf_counter() - started)
    dim = artifact.spec.column_dim
    columns = made_up(0, job.width * dim).reshape(job.width, dim) - np.float32(0.5)
    adjust = np.zeros(job.width, np.float32)
    sizes = {"width": job.width, "batch": job.batch, "micro_batch": job.micro_batch, "threads": job.threads}
    say(event="ready", runtime="onnxruntime", load_ms=load_ms, swap_ms=swap_ms, **sizes)
    for step in range(job.warmup + job.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        gradients = LocalSgd(LocalTraining(), [])
        loss = 0.0
        for first in range(0, job.batch, job.micro_batch):
            result = backend.step(extractor, columns, adjust, made_up_batch(artifact, job, first))
            gradients.accumulate([*result.extractor_gradients.values(), result.columns_gradient])
            loss += result.loss
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


def made_up_batch(artifact: Artifact, job: BenchJob, first: int) -> Batch:
    """Examples `first` and on, as many as one step takes."""
    examples = np.arange(first, min(first + job.micro_batch, job.batch))
    pixels = int(np.prod(artifact.spec.image_shape))
    images = 2 * made_up(first * pixels, len(examples) * pixels) - np.float32(1)
    return Batch(
        images.reshape(-1, *artifact.spec.image_shape),
        examples % job.width,
        np.full(len(examples), 1 / job.batch, np.float32),
    )


def made_up(first: int, count: int) -> FloatArray:
    """The top bits of a multiplicative hash: about uniform in 0..1, exact in float32."""
    hashed = np.arange(first, first + count, dtype=np.uint32) * np.uint32(2654435761)
    return (hashed >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


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
