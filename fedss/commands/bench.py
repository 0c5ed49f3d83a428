"""`fedss bench`: what a step costs in time, memory and instructions; on this host beside eager torch, or on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from android_harness.bundles.stock_onnxruntime import stock_onnxruntime_folders, stock_onnxruntime_versions
from android_harness.devices.device import DeviceDescription, DeviceError
from android_harness.measuring.client_bench import BUNDLE_OF_RUNTIME, BenchSize
from android_harness.measuring.measurement import (
    STOCK_ONNXRUNTIME,
    YARDSTICK,
    ContendersDisagree,
    Measurement,
    append_rows,
    measure_side_by_side,
)
from export.cost.communication import round_bytes
from fedss.comma_lists import names, numbers
from fedss.commands.bench_tables import bench_tables
from fedss.commands.device_bench import BenchDevice, find_memory_limit, opened_device, with_micro_batch
from fedss.console import CheckFailed, Json, UsageError, log, progress, show_result
from fedss.device_rounds import check_device_name
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.report.bench_charts import write_charts
from fedss.termination import unwinding_on_sigterm
from ondevice.contract.artifact import Artifact, open_artifact
from ondevice.tools.installed_versions import installed_versions
from ondevice.tools.step_process import CHANNELS_LAST

YARDSTICKS = (YARDSTICK, CHANNELS_LAST)
HOST, EMULATOR = "host", "emulator"
EMULATOR_MEMORY_MB = 512
CLIENT_SUFFIX = "-client"
"""On the host a runtime is measured twice: in a Python process beside eager, and as the client that devices get."""


def command(
    artifact: Annotated[Path, typer.Argument(help="The artifact directory.")],
    device: Annotated[
        str | None,
        typer.Option(
            help="Where to run: host, qemu, emulator, emulator:NAME or adb:SERIAL.", show_default=HOST
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            help="Some of the artifact's runtimes; all if not given.  On the host also onnxruntime-stock: "
            "what phones have, fetched at the first time."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help=f"On the host, what to compare with: some of {', '.join(YARDSTICKS)}, or none.",
            show_default="all",
        ),
    ] = None,
    batch: Annotated[str, typer.Option(help="Examples of a step; split into micro-batches.")] = "4",
    micro_batch: Annotated[
        str | None,
        typer.Option(
            help="Micro-batches; other than the artifact's own are exported.", show_default="its own"
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Fail unless the artifact is for images of this size.")
    ] = None,
    widths: Annotated[str, typer.Option(help="Numbers of sampled classes.")] = "170",
    threads: Annotated[str, typer.Option(help="Threads of the runtime.")] = "1",
    warm_up: Annotated[int, typer.Option(min=0, help="Steps that are not counted.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are.")] = 10,
    find_max_batch: Annotated[
        bool,
        typer.Option("--find-max-batch", help="Find the largest micro-batch that lives in an emulator."),
    ] = False,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="MB", help="RAM of the emulator that is booted.", show_default=str(EMULATOR_MEMORY_MB)
        ),
    ] = None,
    device_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that one program may run on a device.")
    ] = 1800,
    out: Annotated[Path, typer.Option(help="Where rows accumulate (results.jsonl) and the plots go.")] = Path(
        "runs/bench"
    ),
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Time per step, peak memory, load and swap time beside eager; instructions where the device is emulated."""
    opened = open_artifact(artifact)
    where = device or (EMULATOR if find_max_batch else HOST)
    _check_request(opened, where, image_size, against, memory, find_max_batch)
    memory_mb = memory or EMULATOR_MEMORY_MB
    runtimes = _runtimes(opened, runtime, where)
    if find_max_batch and runtime is None:
        runtimes = runtimes[:1]  # the default on devices
    request = _Request(
        runtimes=runtimes,
        yardsticks=_yardsticks(against) if where == HOST else [],
        batches=numbers("--batch", batch),
        micro_batches=[opened.micro_batch] if micro_batch is None else numbers("--micro-batch", micro_batch),
        widths=_widths(opened, widths),
        threads=numbers("--threads", threads),
        warm_up=warm_up,
        steps=steps,
        stock_onnxruntime=stock_onnxruntime_folders(cache) if STOCK_ONNXRUNTIME in runtimes else [],
    )
    results = _Results(out)
    limits: list[dict[str, Any]] = []
    with unwinding_on_sigterm(), opened_device(where, cache, device_timeout, memory_mb) as there:
        if find_max_batch:
            for name in request.runtimes:
                limit = find_memory_limit(there, opened, name, max(request.widths))
                for exported, row in limit.survivors:
                    results.add(exported, row, there.description)
                limits.append(limit.payload(memory_mb))
                log.print(limit.words(memory_mb))
        else:
            for size in request.micro_batches:
                with with_micro_batch(opened, size, request.programs()) as exported:
                    for row in _measure(exported, request, there):
                        results.add(exported, row, there.description)
    pictures = write_charts(results.path)
    log.print(f"rows added to {results.path}, drawn in {', '.join(map(str, pictures))}")
    context: dict[str, Any] = {"device": asdict(there.description), "artifact_sha256": opened.sha256}
    if find_max_batch:
        context["memory_limits"] = limits
    show_result(as_json, {"rows": results.complete, **context}, bench_tables(results.rows))


@dataclass(frozen=True)
class _Request:
    """What the command line asks for, checked."""

    runtimes: list[str]
    yardsticks: list[str]
    batches: list[int]
    micro_batches: list[int]
    widths: list[int]
    threads: list[int]
    warm_up: int
    steps: int
    stock_onnxruntime: list[Path]
    """Folders of its packages, if it is among the runtimes."""

    def programs(self) -> list[str]:
        """The runtimes by the programs that they run."""
        return list(
            dict.fromkeys("onnxruntime" if name == STOCK_ONNXRUNTIME else name for name in self.runtimes)
        )

    def sizes(self, micro_batch: int) -> list[BenchSize]:
        return [
            BenchSize(examples, min(examples, micro_batch), width, count, self.warm_up, self.steps)
            for examples in self.batches
            for width in self.widths
            for count in self.threads
        ]


class _Results:
    """Rows as they come, each written at once with all that makes it complete in itself."""

    def __init__(self, out: Path) -> None:
        self.path = out / "results.jsonl"
        self.rows: list[Measurement] = []
        self.complete: list[dict[str, Any]] = []

    def add(self, artifact: Artifact, row: Measurement, description: DeviceDescription) -> None:
        complete = _complete(artifact, row, description)
        append_rows(self.path, [complete])
        self.rows.append(row)
        self.complete.append(complete)


def _complete(artifact: Artifact, row: Measurement, description: DeviceDescription) -> dict[str, Any]:
    exchanged = round_bytes(artifact.parameter_shapes, artifact.spec.column_dim, row.width)
    return {
        **asdict(row),
        "bytes_down": exchanged.model_slice,
        "bytes_up": exchanged.request + exchanged.update,
        "device": asdict(description),
        "emulated": description.emulated,
        "versions": installed_versions()
        | (stock_onnxruntime_versions() if row.runtime == STOCK_ONNXRUNTIME else {}),
        "artifact_sha256": artifact.sha256,
    }


def _measure(artifact: Artifact, request: _Request, there: BenchDevice) -> Iterator[Measurement]:
    sizes = request.sizes(artifact.micro_batch)
    if there.description.name != HOST:
        yield from there.measure(artifact, request.runtimes, sizes)
        return
    yield from _measure_here(artifact, request, sizes)
    bundled = [runtime for runtime in request.runtimes if runtime in BUNDLE_OF_RUNTIME]
    if not bundled:
        return
    try:
        for row in there.measure(artifact, bundled, sizes):
            yield replace(row, runtime=row.runtime + CLIENT_SUFFIX)
    except DeviceError as error:  # this host cannot build a client, or not run it; the rest stands without
        log.print(f"left out: the clients that devices get: {error}")


def _measure_here(artifact: Artifact, request: _Request, sizes: Sequence[BenchSize]) -> Iterator[Measurement]:
    contenders = [*request.yardsticks, *request.runtimes]
    with progress("stepping") as advance:
        total = sum(size.warm_up + size.steps for size in sizes)
        done = 0

        def count_step() -> None:
            nonlocal done
            done += 1
            advance(done, total)

        for size in sizes:
            try:
                yield from measure_side_by_side(
                    artifact,
                    contenders,
                    size.batch,
                    size.width,
                    size.threads,
                    size.warm_up,
                    size.steps,
                    count_step,
                    request.stock_onnxruntime,
                )
            except ContendersDisagree as error:
                raise CheckFailed(str(error)) from error


def _check_request(
    artifact: Artifact,
    device: str,
    image_size: int | None,
    against: str | None,
    memory: int | None,
    find_max_batch: bool,
) -> None:
    check_device_name(device)
    size = artifact.spec.image_shape[1]
    if image_size not in (None, size):
        raise UsageError(
            f"--image-size is {image_size}, but {artifact.directory} is for {size}; export one for {image_size}"
        )
    if device != HOST and against not in (None, "none"):
        raise UsageError(f"--against is {against!r} on {device}; eager torch runs on the host alone")
    if device != EMULATOR and (find_max_batch or memory is not None):
        given = "--find-max-batch" if find_max_batch else f"--memory {memory}"
        raise UsageError(
            f"{given} is for an emulator booted for the occasion; --device is {device!r}, expected {EMULATOR}"
        )


def _runtimes(artifact: Artifact, text: str | None, device: str) -> list[str]:
    """What was asked for, if the artifact has it and the device a client for it."""
    available = [name for name in artifact.manifest.runtimes if device == HOST or name in BUNDLE_OF_RUNTIME]
    chosen = available if text is None else names("--runtime", text)
    if device == HOST and "onnxruntime" in available:
        available = [*available, STOCK_ONNXRUNTIME]
    unknown = [name for name in chosen if name not in available]
    if unknown or (device != HOST and not chosen):
        what = f"--runtime names {', '.join(unknown)}" if unknown else "--runtime is not given"
        raise UsageError(
            f"{what}; on {device}, {artifact.directory} runs with: {', '.join(available) or 'nothing'}"
        )
    return chosen


def _yardsticks(text: str | None) -> list[str]:
    chosen = list(YARDSTICKS) if text is None else [] if text == "none" else names("--against", text)
    unknown = [name for name in chosen if name not in YARDSTICKS]
    if unknown:
        raise UsageError(f"--against names {', '.join(unknown)}; expected some of {', '.join(YARDSTICKS)}")
    return chosen


def _widths(artifact: Artifact, text: str) -> list[int]:
    widths = numbers("--widths", text)
    if max(widths) > artifact.max_width:
        raise UsageError(
            f"--widths has {max(widths)}; {artifact.directory} takes at most {artifact.max_width} classes"
        )
    return widths
