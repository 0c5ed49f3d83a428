"""What a step costs on a device: the client's verb `bench`, run there and read.

Golden step first: figures of a client that computes something else are worth nothing.  What becomes of them depends on what
the device is:

    physical      time per step, load and swap time, peak memory; temperature, clock and energy where it tells
    emulator      peak memory, for the guest's kernel keeps it; no time at all, for an emulator's says nothing about a phone
    qemu          instructions per step, as the difference between a short run and a longer one, so that loading and the
                  first steps' surprises are not in it; no memory, for it is qemu's own, and no time

A second thread makes the count of instructions inexact (`instruction_count.c`), so that it is taken with one thread only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from android_harness.devices.device import Device, DeviceError, FailureReason, RunResult
from android_harness.devices.qemu import QemuDevice
from android_harness.measuring.measurement import BenchSize, Measurement, percentile
from android_harness.measuring.power_state import PowerState, energy_millijoules, read_power_state
from android_harness.rounds.installed_client import ARTIFACT, InstalledClient
from ondevice.contract.artifact import MEGABYTE

BUNDLE_OF_RUNTIME = {
    "executorch": "executorch",
    "executorch-stock": "executorch",
    "onnxruntime": "onnxruntime",
}
"""By runtime: the bundle whose client runs it."""


@dataclass(frozen=True)
class BenchReport:
    """What the client said: milliseconds of the steps that count, bytes at the end."""

    load_ms: float
    swap_ms: float
    cpu_ms: tuple[float, ...]
    wall_ms: tuple[float, ...]
    peak_footprint_bytes: int
    loss: float


def check_client(client: InstalledClient, runtime: str) -> None:
    """`DeviceError` unless the client reproduces the artifact's golden step there."""
    client.run("check", {"--artifact": ARTIFACT, **_runtime_option(runtime)})


def measure_client(
    device: Device, client: InstalledClient, runtime: str, image_size: int, size: BenchSize
) -> tuple[Measurement, float]:
    """One row, and the loss, to be compared with other runtimes': their examples are the same."""
    if isinstance(device, QemuDevice):
        instructions, loss = _instructions_per_step(client, runtime, size)
        return _row(runtime, image_size, size, instructions_per_step=instructions), loss
    emulated = device.describe().emulated
    before = PowerState() if emulated else read_power_state(device)
    report = parse_bench(run_bench(client, runtime, size, size.warm_up, size.steps).stdout)
    after = PowerState() if emulated else read_power_state(device)
    peak_mb = round(report.peak_footprint_bytes / MEGABYTE, 1)
    if emulated:
        return _row(runtime, image_size, size, peak_mb=peak_mb), report.loss
    energy = energy_millijoules(before, after)
    figures = {
        "cpu_ms_p50": percentile(report.cpu_ms, 50),
        "cpu_ms_p90": percentile(report.cpu_ms, 90),
        "wall_ms_p50": percentile(report.wall_ms, 50),
        "wall_ms_p90": percentile(report.wall_ms, 90),
        "peak_mb": peak_mb,
        "load_ms": round(report.load_ms, 1),
        "swap_ms": round(report.swap_ms, 3),
        "energy_mj_per_step": None if energy is None else energy / (size.warm_up + size.steps),
        "temperature_celsius": after.temperature_celsius,
        "frequency_mhz": after.frequency_mhz,
    }
    return _row(runtime, image_size, size, **figures), report.loss


def parse_bench(stdout: str) -> BenchReport:
    """The client's JSON lines; `DeviceError` if they do not tell what they must."""
    try:
        ready, *steps, done = (json.loads(line) for line in stdout.splitlines())
        counted = [step for step in steps if not step["warmup"]]
        return BenchReport(
            load_ms=_number(ready["load_ms"]),
            swap_ms=_number(ready["swap_ms"]),
            cpu_ms=tuple(_number(step["cpu_ms"]) for step in counted),
            wall_ms=tuple(_number(step["wall_ms"]) for step in counted),
            peak_footprint_bytes=int(_number(done["peak_footprint_bytes"])),
            loss=_number(counted[-1]["loss"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise DeviceError(
            FailureReason.FAILED,
            f"bench printed something that is not understood ({error!r}); expected the lines of fedss-client: "
            f"{stdout[:1000]!r}",
        ) from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:50]} where a number is expected")
    return float(value)


def per_step(counts: Sequence[tuple[int, int]]) -> float:
    """From (steps, instructions) of a short run and of a longer one: instructions of one step more."""
    (few, fewer_instructions), (many, more_instructions) = counts
    return (more_instructions - fewer_instructions) / (many - few)


def _instructions_per_step(
    client: InstalledClient, runtime: str, size: BenchSize
) -> tuple[float | None, float]:
    few = max(size.warm_up, 1)
    counts = []
    for steps in (few, few + size.steps):
        result = run_bench(client, runtime, size, warm_up=0, steps=steps)
        if result.instructions is None:
            raise DeviceError(
                FailureReason.FAILED, "qemu counted no instructions; expected a number at the end of bench"
            )
        counts.append((steps, result.instructions))
    instructions = round(per_step(counts)) if size.threads == 1 else None
    return instructions, parse_bench(result.stdout).loss


def run_bench(
    client: InstalledClient,
    runtime: str,
    size: BenchSize,
    warm_up: int,
    steps: int,
    *,
    profiled: bool = False,
) -> RunResult:
    """The client's verb `bench`, to its end."""
    options: dict[str, str | int] = {
        "--artifact": ARTIFACT,
        "--width": size.width,
        "--batch": size.batch,
        "--micro-batch": size.micro_batch,
        "--threads": size.threads,
        "--warmup": warm_up,
        "--steps": steps,
    }
    if profiled:
        options["--profile"] = 1
    return client.run("bench", {**options, **_runtime_option(runtime)})


def _runtime_option(runtime: str) -> dict[str, str | int]:
    """Only the native client has two runtimes to choose from."""
    return {"--runtime": runtime} if BUNDLE_OF_RUNTIME[runtime] == "executorch" else {}


def _row(runtime: str, image_size: int, size: BenchSize, **figures: Any) -> Measurement:
    return Measurement(
        runtime=runtime,
        batch=size.batch,
        micro_batch=size.micro_batch,
        image_size=image_size,
        width=size.width,
        threads=size.threads,
        **figures,
    )
