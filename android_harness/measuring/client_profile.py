"""Where a step spends its time or its instructions, call by call: the client's verb `bench`, run with `--profile`.

    host, physical   processor time of every call, the median over the steps; and the processor's peak, measured there
    qemu             instructions of every call, from the marks that the client leaves around it
    emulator         nothing: its time says nothing about a phone

What a step costs outside its operators (the client's batches, the runtime between two calls) is told apart from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from android_harness.devices.device import Device, DeviceError, FailureReason, RunResult
from android_harness.devices.qemu import QemuDevice
from android_harness.measuring.client_bench import parse_bench, run_bench
from android_harness.measuring.measurement import BenchSize
from android_harness.rounds.installed_client import InstalledClient
from ondevice.contract.artifacts.program_calls import OperatorCall

Unit = Literal["nanoseconds", "instructions"]
_COUNTED_STEPS = 3
"""Under qemu: one that is not looked at, one that is, and one whose start is its end."""


@dataclass(frozen=True)
class CallCosts:
    """Of one step; micro-batches added up."""

    unit: Unit
    calls: tuple[float, ...]
    """In the order of the program's calls."""
    outside: float
    """What the step costs between and beside its calls."""
    peak: float
    """Multiply-adds per unit that this processor does at most: measured, or four per instruction of ARM64."""


def profile_client(
    device: Device, client: InstalledClient, runtime: str, size: BenchSize, calls: Sequence[OperatorCall]
) -> CallCosts:
    """`DeviceError` where the client does not tell."""
    if isinstance(device, QemuDevice):
        result = run_bench(client, runtime, size, warm_up=0, steps=_COUNTED_STEPS, profiled=True)
        return costs_from_marks(result.marks, len(calls), -(-size.batch // size.micro_batch))
    result = run_bench(client, runtime, size, size.warm_up, size.steps, profiled=True)
    return costs_from_times(result, [call.instruction for call in calls])


def costs_from_marks(marks: Sequence[int], num_calls: int, micro_batches: int) -> CallCosts:
    """Of the middle step: marks stand in pairs around the calls."""
    per_step = 2 * num_calls * micro_batches
    if len(marks) != _COUNTED_STEPS * per_step:
        raise DeviceError(
            FailureReason.FAILED,
            f"qemu saw {len(marks)} marks; expected {_COUNTED_STEPS * per_step}, two around each of "
            f"{num_calls} calls: export the artifact again",
        )
    middle = np.array(marks[per_step : 2 * per_step + 1], np.int64)
    counted = np.diff(middle)
    calls = counted[::2].reshape(micro_batches, num_calls).sum(0)
    return CallCosts("instructions", tuple(map(float, calls)), float(counted[1::2].sum()), peak=4.0)


def costs_from_times(result: RunResult, instructions: Sequence[int]) -> CallCosts:
    """From what the client printed: nanoseconds by instruction, a list per step."""
    lines = result.stdout.splitlines()
    steps = parse_bench("\n".join([*lines[:-2], lines[-1]] if len(lines) > 1 else lines)).cpu_ms
    try:
        said = json.loads(lines[-2])
        times = np.array(said["nanoseconds"], np.float64)[:, list(instructions)]
        peak = float(said["peak_multiply_adds_per_nanosecond"])
        outside = np.median(1e6 * np.array(steps) - times.sum(1))
        if not (np.isfinite(times).all() and np.isfinite(outside) and peak > 0 and np.isfinite(peak)):
            raise ValueError("a time is no number")
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise DeviceError(
            FailureReason.FAILED,
            f"bench --profile printed something that is not understood ({error!r}); expected a time for each of "
            f"{len(instructions)} calls: export the artifact again, or make a new bundle",
        ) from error
    calls = tuple(map(float, np.median(times, axis=0)))
    return CallCosts("nanoseconds", calls, max(float(outside), 0.0), peak)
