"""What a step costs in time, memory and instructions: on this host beside eager torch, or on a device.

    rows = fedss.bench("artifacts/mobilenet", widths=[170])
    rows[0].cpu_ms_p50

Times mean something as ratios within one call, and no more: `row.ratio_to_eager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from android_harness.bundles.stock_onnxruntime import stock_onnxruntime_folders, stock_onnxruntime_versions
from android_harness.devices.device import DeviceDescription, DeviceError
from android_harness.measuring.client_bench import BUNDLE_OF_RUNTIME
from android_harness.measuring.measurement import (
    STOCK_ONNXRUNTIME,
    YARDSTICK,
    BenchSize,
    ContendersDisagree,
    Measurement,
    append_rows,
    measure_side_by_side,
)
from export.cost.communication import round_bytes
from fedss.api.callbacks import Advance, Note, unheard
from fedss.api.device_bench import (
    BenchDevice,
    MemoryLimit,
    find_memory_limit,
    opened_device,
    with_micro_batch,
)
from fedss.api.errors import CheckFailed, UsageError, WrongArgument
from fedss.api.widths import widths_of
from fedss.device_rounds import check_device_name
from ondevice.backends.opening import needs_trust
from ondevice.contract.artifact import Artifact, open_artifact
from ondevice.tools.cache_folder import default_cache_folder
from ondevice.tools.installed_versions import installed_versions
from ondevice.tools.step_process import CHANNELS_LAST

__all__ = ["BenchRow", "MemoryLimit", "bench", "find_max_batch"]

YARDSTICKS = (YARDSTICK, CHANNELS_LAST)
HOST, EMULATOR = "host", "emulator"
EMULATOR_MEMORY_MB = 512
CLIENT_SUFFIX = "-client"
"""On the host a runtime is measured twice: in a Python process beside eager, and as the client that devices get."""
RESULTS = "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class BenchRow(Measurement):
    """A measurement that is complete in itself: what a client exchanges at that size, where and of what it was taken."""

    bytes_down: int
    bytes_up: int
    device: DeviceDescription
    emulated: bool
    versions: dict[str, str]
    artifact_sha256: str


def bench(
    artifact: str | Path | Artifact,
    *,
    device: str = HOST,
    runtimes: Sequence[str] | None = None,
    against: Sequence[str] | None = None,
    trust_model: str = "",
    batches: Sequence[int] = (4,),
    micro_batches: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    threads: Sequence[int] = (1,),
    warm_up: int = 2,
    steps: int = 10,
    memory_mb: int = EMULATOR_MEMORY_MB,
    timeout: float = 1800.0,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    on_row: Callable[[BenchRow], None] | None = None,
    on_step: Advance | None = None,
    on_note: Note = unheard,
) -> list[BenchRow]:
    """A row per runtime and size.

    device         host, qemu, emulator, emulator:NAME or adb:SERIAL
    runtimes       some of the artifact's; all if not given.  On the host also onnxruntime-stock, what phones have
    against        on the host, what to compare with: eager, eager-channels-last; both if not given
    trust_model    code from elsewhere that eager may run: the names of network and loss that it was exported by, with commas
    batches        examples of a step, split into micro-batches
    micro_batches  the artifact's own if not given; others are exported for the occasion
    widths         numbers of sampled classes; 170 if not given, and none where the step takes no rows of a table
    memory_mb      of the emulator that is booted, with device = "emulator"
    out            a folder where rows accumulate (results.jsonl), each written as it comes

    Raises `CheckFailed` where two runtimes compute different losses from the same step.
    """
    opened = artifact if isinstance(artifact, Artifact) else open_artifact(Path(artifact))
    check_device_name(device)
    if device != HOST and against:
        raise WrongArgument(
            "against", f"is {', '.join(against)} on {device}; eager torch runs on the host alone"
        )
    cache_folder = default_cache_folder() if cache is None else Path(cache)
    chosen = _runtimes(opened, runtimes, device)
    yardsticks = _yardsticks(against) if device == HOST else []
    if against is None and needs_trust(opened, trust_model):
        code = needs_trust(opened, trust_model)
        on_note(f"left out: eager, which would run the code of {code}; trust_model allows it")
        yardsticks = []
    if not chosen and not yardsticks:
        raise UsageError(f"{opened.directory} has no runtime, and nothing to compare with is asked for")
    sampled = widths_of(opened, widths)
    request = _Request(
        runtimes=chosen,
        yardsticks=yardsticks,
        batches=batches,
        widths=sampled,
        threads=threads,
        warm_up=warm_up,
        steps=steps,
        stock_onnxruntime=stock_onnxruntime_folders(cache_folder) if STOCK_ONNXRUNTIME in chosen else [],
        trusted=trust_model,
        advance=on_step or _unheard_steps,
        note=on_note,
    )
    results = _Results(out, on_row)
    with opened_device(device, cache_folder, timeout, memory_mb, on_note) as there:
        for size in micro_batches or [opened.micro_batch]:
            with with_micro_batch(opened, size, request.programs(), on_note) as exported:
                for row in _measure(exported, request, there):
                    results.add(exported, row, there.description)
    return results.rows


def find_max_batch(
    artifact: str | Path | Artifact,
    *,
    runtimes: Sequence[str] | None = None,
    width: int | None = None,
    memory_mb: int = EMULATOR_MEMORY_MB,
    timeout: float = 1800.0,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    on_row: Callable[[BenchRow], None] | None = None,
    on_note: Note = unheard,
) -> list[MemoryLimit]:
    """The largest micro-batch that lives in an emulated phone with `memory_mb`, per runtime; the artifact's first if none is
    given.  Arguments are those of `bench`; every micro-batch that lived is a row."""
    opened = artifact if isinstance(artifact, Artifact) else open_artifact(Path(artifact))
    chosen = _runtimes(opened, runtimes, EMULATOR)
    (sampled,) = widths_of(opened, None if width is None else [width])
    results = _Results(out, on_row)
    limits = []
    cache_folder = default_cache_folder() if cache is None else Path(cache)
    with opened_device(EMULATOR, cache_folder, timeout, memory_mb, on_note) as phone:
        for runtime in chosen if runtimes is not None else chosen[:1]:
            limit = find_memory_limit(phone, opened, runtime, sampled, memory_mb)
            for exported, row in limit.survivors:
                results.add(exported, row, phone.description)
            limits.append(limit)
    return limits


@dataclass(frozen=True)
class _Request:
    """What is asked for, checked."""

    runtimes: list[str]
    yardsticks: list[str]
    batches: Sequence[int]
    widths: Sequence[int]
    threads: Sequence[int]
    warm_up: int
    steps: int
    stock_onnxruntime: list[Path]
    """Folders of its packages, if it is among the runtimes."""
    trusted: str
    advance: Advance
    note: Note

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
    """Rows as they come, each heard of and written at once."""

    def __init__(self, out: str | Path | None, on_row: Callable[[BenchRow], None] | None) -> None:
        self._path = None if out is None else Path(out) / RESULTS
        self._on_row = on_row
        self.rows: list[BenchRow] = []

    def add(self, artifact: Artifact, row: Measurement, description: DeviceDescription) -> None:
        complete = _complete(artifact, row, description)
        if self._path is not None:
            append_rows(self._path, [asdict(complete)])
        self.rows.append(complete)
        if self._on_row is not None:
            self._on_row(complete)


def _complete(artifact: Artifact, row: Measurement, description: DeviceDescription) -> BenchRow:
    exchanged = round_bytes(artifact.signature, row.width)
    stock = stock_onnxruntime_versions() if row.runtime == STOCK_ONNXRUNTIME else {}
    return BenchRow(
        **asdict(row),
        bytes_down=exchanged.model_slice,
        bytes_up=exchanged.request + exchanged.update,
        device=description,
        emulated=description.emulated,
        versions=installed_versions() | stock,
        artifact_sha256=artifact.sha256,
    )


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
        request.note(f"left out: the clients that devices get: {error}")


def _measure_here(artifact: Artifact, request: _Request, sizes: Sequence[BenchSize]) -> Iterator[Measurement]:
    contenders = [*request.yardsticks, *request.runtimes]
    total = sum(size.warm_up + size.steps for size in sizes)
    done = 0

    def count_step() -> None:
        nonlocal done
        done += 1
        request.advance(done, total)

    for size in sizes:
        try:
            yield from measure_side_by_side(
                artifact, contenders, size, count_step, request.stock_onnxruntime, request.trusted
            )
        except ContendersDisagree as error:
            raise CheckFailed(str(error)) from error


def _runtimes(artifact: Artifact, wanted: Sequence[str] | None, device: str) -> list[str]:
    """What was asked for, if the artifact has it and the device a client for it."""
    available = [name for name in artifact.manifest.runtimes if device == HOST or name in BUNDLE_OF_RUNTIME]
    chosen = available if wanted is None else list(wanted)
    if device == HOST and "onnxruntime" in available:
        available = [*available, STOCK_ONNXRUNTIME]
    unknown = [name for name in chosen if name not in available]
    if unknown or (device != HOST and not chosen):
        problem = f"names {', '.join(unknown)}" if unknown else "is not given"
        raise WrongArgument(
            "runtimes",
            f"{problem}; on {device}, {artifact.directory} runs with: {', '.join(available) or 'nothing'}",
        )
    return chosen


def _yardsticks(wanted: Sequence[str] | None) -> list[str]:
    unknown = [name for name in wanted or () if name not in YARDSTICKS]
    if unknown:
        raise WrongArgument(
            "against", f"names {', '.join(unknown)}; expected some of {', '.join(YARDSTICKS)}"
        )
    return list(YARDSTICKS if wanted is None else wanted)


def _unheard_steps(done: int, total: int) -> None:
    """For steps that nobody counts."""
