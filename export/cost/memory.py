"""What a step costs in memory: planned by the program, and measured as the peak of a process that only steps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from export.cost.footprint import planned_bytes
from export.lowering import lower_lengths
from export.proof.golden import build_step
from ondevice.backends.opening import Runtime
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import INITIAL, Artifact, write_artifact
from ondevice.contract.artifacts.manifest import Manifest, MemoryFigure
from ondevice.contract.step_signature import EXAMPLES
from ondevice.tools.step_process import StepJob, StepProcess

Report = Callable[[str], None]
"""Is told what is being done."""

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


def measure_widths(
    artifact: Artifact,
    runtime: Runtime,
    planned: int | None,
    widths: Sequence[int],
    report: Report = lambda _: None,
) -> Iterator[MemoryFigure]:
    """A process for every width; `planned` is the same for all, since programs plan for the largest."""
    for width in widths:
        report(f"measuring the memory of {runtime} at micro-batch {artifact.micro_batch}, width {width}")
        peak = measure_peak(artifact, runtime, width)
        yield MemoryFigure(runtime, artifact.micro_batch, width, planned, peak)


def measure_programs(
    manifest: Manifest, programs: Mapping[str, bytes], initial: bytes, runtime: Runtime, widths: Sequence[int]
) -> list[MemoryFigure]:
    """Programs that belong to no artifact yet, such as those of a micro-batch that is only being tried."""
    with tempfile.TemporaryDirectory() as directory:
        files = {INITIAL: initial, **programs}
        trial = write_artifact(Path(directory), replace(manifest, runtimes=(runtime,)), files)
        return list(measure_widths(trial, runtime, planned_bytes(programs), widths))


def memory_table(
    artifact: Artifact,
    runtimes: Sequence[Runtime],
    micro_batches: Sequence[int],
    widths: Sequence[int],
    report: Report = lambda _: None,
) -> Iterator[MemoryFigure]:
    """What the same step needs at other widths, and would need at other micro-batches: lowered again for those."""
    weights = artifact.initial()
    planned = {figure.runtime: figure.planned_bytes for figure in artifact.manifest.memory}
    for runtime in runtimes:
        for micro_batch in micro_batches:
            if micro_batch == artifact.micro_batch:
                yield from measure_widths(artifact, runtime, planned[runtime], widths, report)
                continue
            report(f"lowering for {runtime}, micro-batch {micro_batch}")
            bounds = {**artifact.bounds, EXAMPLES: micro_batch}
            step, lengths = build_step(artifact.spec, weights), artifact.manifest.lengths
            programs = lower_lengths(runtime, step, lengths, bounds)
            manifest = replace(artifact.manifest, bounds=bounds)
            yield from measure_programs(
                manifest, programs, safetensors_file.to_bytes(weights, {}), runtime, widths
            )
