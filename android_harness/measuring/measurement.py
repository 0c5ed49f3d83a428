"""What a step costs, as rows: contenders side by side, step by step in turn, so that a busy machine slows all alike.

Figures of CPU time mean something as ratios within one run, and no more; a row therefore carries its ratio to eager torch
(images in the usual memory format, the whole batch at once) and, in the results file, where and of what it was taken.
Here are the contenders that are Python processes on this host; `client_bench` measures the clients that devices get.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ondevice.contract.artifact import MEGABYTE, Artifact
from ondevice.tools.step_process import CHANNELS_LAST, StepJob, StepProcess, StepTime

YARDSTICK = "eager"
STOCK_ONNXRUNTIME = "onnxruntime-stock"
"""The same program as `onnxruntime`, on the build that phones have (`stock_onnxruntime`)."""
SWAPS = 3
LOSS_TOLERANCE = 1e-3


class ContendersDisagree(RuntimeError):
    """Two contenders computed different losses from the same step: their times cannot be compared."""


@dataclass(frozen=True)
class BenchSize:
    """What to step, and how often."""

    batch: int
    micro_batch: int
    width: int
    threads: int
    warm_up: int
    steps: int


@dataclass(frozen=True)
class Measurement:
    """One contender at one size; None is what was not measured.  The names are those of `fedss bench --json`."""

    runtime: str
    batch: int
    micro_batch: int
    image_size: int
    width: int
    threads: int
    cpu_ms_p50: float | None = None
    cpu_ms_p90: float | None = None
    wall_ms_p50: float | None = None
    wall_ms_p90: float | None = None
    ratio_to_eager: float | None = None
    """Of CPU time, the median over turns; None when eager did not run beside it."""
    peak_mb: float | None = None
    load_ms: float | None = None
    swap_ms: float | None = None
    instructions_per_step: float | None = None
    """Of an emulated processor."""
    energy_mj_per_step: float | None = None
    temperature_celsius: float | None = None
    """At the end."""
    frequency_mhz: float | None = None


def measure_side_by_side(
    artifact: Artifact,
    runtimes: Sequence[str],
    size: BenchSize,
    advance: Callable[[], None],
    stock_onnxruntime: Sequence[Path] = (),
    trusted: str = "",
) -> list[Measurement]:
    """One row per runtime.  Every runtime steps in a process of its own, the same step, in turn.

    `stock_onnxruntime`: the folders of that contender's packages.  `trusted`: the network whose code eager may run.
    """
    with ExitStack() as stack:
        processes: dict[str, StepProcess] = {}
        for runtime in runtimes:
            is_stock = runtime == STOCK_ONNXRUNTIME
            program = "onnxruntime" if is_stock else runtime
            job = StepJob(
                str(artifact.directory), program, size.batch, size.width, size.threads, trusted=trusted
            )
            process = StepProcess(job, stock_onnxruntime if is_stock else ())
            processes[runtime] = stack.enter_context(process)
        times: dict[str, list[StepTime]] = {runtime: [] for runtime in runtimes}
        for index in range(size.warm_up + size.steps):
            for runtime, process in processes.items():
                taken = process.step()
                if index >= size.warm_up:
                    times[runtime].append(taken)
            advance()
        check_losses({runtime: taken[-1].loss for runtime, taken in times.items()})
        # Peak before swap: encoding the slice that is swapped in is the server's work, not the client's.
        peaks = {runtime: process.peak_bytes() for runtime, process in processes.items()}
        swaps = {runtime: [process.swap_ms() for _ in range(SWAPS)] for runtime, process in processes.items()}
        yardstick = times.get(YARDSTICK)
        return [
            Measurement(
                runtime=runtime,
                batch=size.batch,
                micro_batch=size.batch if runtime in (YARDSTICK, CHANNELS_LAST) else size.micro_batch,
                image_size=artifact.spec.image_shape[1],
                width=size.width,
                threads=size.threads,
                cpu_ms_p50=percentile([time.cpu_ms for time in times[runtime]], 50),
                cpu_ms_p90=percentile([time.cpu_ms for time in times[runtime]], 90),
                wall_ms_p50=percentile([time.wall_ms for time in times[runtime]], 50),
                wall_ms_p90=percentile([time.wall_ms for time in times[runtime]], 90),
                ratio_to_eager=ratio_over_turns(times[runtime], yardstick) if yardstick else None,
                peak_mb=round(peaks[runtime] / MEGABYTE, 1),
                load_ms=round(process.load_ms, 1),
                swap_ms=percentile(swaps[runtime], 50),
            )
            for runtime, process in processes.items()
        ]


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a results file: JSON lines, each complete in itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    taken = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit()}
    with path.open("a") as file:
        file.writelines(json.dumps({**row, **taken}) + "\n" for row in rows)


def check_losses(losses: Mapping[str, float]) -> None:
    """`ContendersDisagree` unless all runtimes computed the same loss from the same step."""
    reference_name, reference = next(iter(losses.items()))
    for runtime, loss in losses.items():
        if not abs(loss - reference) <= LOSS_TOLERANCE * max(abs(reference), LOSS_TOLERANCE):
            raise ContendersDisagree(
                f"{runtime} computed the loss {loss}, {reference_name} {reference}: "
                "not the same step; export the artifact again"
            )


def ratio_over_turns(times: Sequence[StepTime], yardstick: Sequence[StepTime]) -> float:
    """The median over turns: neighbours in time had the same machine, which two medians apart need not have had."""
    return round(
        float(np.median([own.cpu_ms / eager.cpu_ms for own, eager in zip(times, yardstick, strict=True)])), 3
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Rounded to microseconds."""
    return round(float(np.percentile(values, percent)), 3)


def _commit() -> str | None:
    """Of the code that measures; None outside a working copy."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
