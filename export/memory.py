"""What a step costs in memory: planned by the program, and measured as the peak of a process that only steps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from export.footprint import planned_bytes
from export.golden import build_step
from export.lowering import lower
from ondevice import safetensors_file
from ondevice.artifact import INITIAL, Artifact, Manifest, MemoryFigure, write_artifact
from ondevice.backends.opening import Runtime
from ondevice.step_process import StepJob, StepProcess

MEASURED_BATCH = 32
"""The paper's batch: its micro-batches add their gradients up, and the sum takes memory too."""
MEASURED_STEPS = 2
"""The peak of a process is reached in its first steps."""


def measure_peak(artifact: Artifact, runtime: str, width: int) -> int:
    """Bytes, for a batch in micro-batches of the artifact's size."""
    with StepProcess(StepJob(str(artifact.directory), runtime, MEASURED_BATCH, width)) as process:
        for _ in range(MEASURED_STEPS):
            process.step()
        return process.peak_bytes()


def measure_programs(
    manifest: Manifest, programs: dict[str, bytes], initial: bytes, runtime: Runtime, widths: Sequence[int]
) -> list[MemoryFigure]:
    """Programs that belong to no artifact yet, such as those of a micro-batch that is only being tried."""
    planned = planned_bytes(programs)
    with tempfile.TemporaryDirectory() as directory:
        trial = write_artifact(
            Path(directory), replace(manifest, runtimes=(runtime,)), {INITIAL: initial, **programs}
        )
        return [
            MemoryFigure(runtime, trial.micro_batch, width, planned, measure_peak(trial, runtime, width))
            for width in widths
        ]


def memory_table(
    artifact: Artifact,
    runtimes: Sequence[Runtime],
    micro_batches: Sequence[int],
    widths: Sequence[int],
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[MemoryFigure]:
    """What the same step would need at other micro-batches and widths: lowered again, planned and measured."""
    weights = artifact.initial()
    initial = safetensors_file.to_bytes(weights, {})
    for runtime in runtimes:
        for micro_batch in micro_batches:
            report(f"lowering for {runtime}, micro-batch {micro_batch}")
            programs = lower(runtime, build_step(artifact.spec, weights), micro_batch, artifact.max_width)
            manifest = replace(artifact.manifest, micro_batch=micro_batch)
            yield from measure_programs(manifest, programs, initial, runtime, widths)
