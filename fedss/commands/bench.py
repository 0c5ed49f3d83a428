"""`fedss bench`: what a step costs in time, memory and instructions; on this host beside eager torch, or on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from android_harness.measuring.step_profile import PROFILES, as_document
from fedss.api import measurements as api
from fedss.api import profiles
from fedss.api.artifacts import open_artifact
from fedss.api.measurements import (
    EMULATOR,
    EMULATOR_MEMORY_MB,
    HOST,
    RESULTS,
    YARDSTICKS,
    BenchRow,
    MemoryLimit,
)
from fedss.api.profiles import StepProfile
from fedss.comma_lists import names, numbers
from fedss.commands.bench_tables import bench_tables
from fedss.commands.profile_tables import profile_tables
from fedss.console import Json, UsageError, arguments_as_options, log, progress, show_result
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.reporting.bench_charts import write_charts
from fedss.termination import unwinding_on_sigterm
from ondevice.contract.artifact import Artifact

TOP = 12


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
    trust_model: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Code of your own that eager may run: the names of network and loss that it was exported by.",
        ),
    ] = "",
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
    widths: Annotated[
        str | None,
        typer.Option(help="Numbers of sampled classes.", show_default="170, or none without a table"),
    ] = None,
    threads: Annotated[str, typer.Option(help="Threads of the runtime.")] = "1",
    warm_up: Annotated[int, typer.Option(min=0, help="Steps that are not counted.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are.")] = 10,
    find_max_batch: Annotated[
        bool,
        typer.Option("--find-max-batch", help="Find the largest micro-batch that lives in an emulator."),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Where one step of ExecuTorch goes instead: by operator and by layer of the network.",
        ),
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, help="Rows of a profile's tables.", show_default="12")
    ] = None,
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
    _check_request(opened, where, image_size, memory, find_max_batch)
    _check_profile(profile, {"--top": top, "--against": against, "--runtime": runtime}, find_max_batch)
    chosen = None if runtime is None else names("--runtime", runtime)
    sampled = None if widths is None else numbers("--widths", widths)
    memory_mb = memory or EMULATOR_MEMORY_MB
    if profile:
        with unwinding_on_sigterm(), arguments_as_options():
            _show_profile(
                profiles.profile(
                    opened,
                    device=where,
                    batch=_only("--batch", batch),
                    micro_batch=None if micro_batch is None else _only("--micro-batch", micro_batch),
                    width=None if widths is None else _only("--widths", widths),
                    threads=_only("--threads", threads),
                    warm_up=warm_up,
                    steps=steps,
                    timeout=device_timeout,
                    out=out,
                    cache=cache,
                    on_note=log.print,
                ),
                out / PROFILES,
                top or TOP,
                as_json,
            )
        return
    rows: list[BenchRow] = []
    limits: list[MemoryLimit] = []
    with unwinding_on_sigterm(), arguments_as_options(runtimes="runtime"):
        if find_max_batch:
            limits = api.find_max_batch(
                opened,
                runtimes=chosen,
                width=None if sampled is None else max(sampled),
                memory_mb=memory_mb,
                timeout=device_timeout,
                out=out,
                cache=cache,
                on_row=rows.append,
                on_note=log.print,
            )
        else:
            with progress("stepping") as on_step:
                rows = api.bench(
                    opened,
                    device=where,
                    runtimes=chosen,
                    against=_yardsticks(against),
                    trust_model=trust_model,
                    batches=numbers("--batch", batch),
                    micro_batches=None if micro_batch is None else numbers("--micro-batch", micro_batch),
                    widths=sampled,
                    threads=numbers("--threads", threads),
                    warm_up=warm_up,
                    steps=steps,
                    memory_mb=memory_mb,
                    timeout=device_timeout,
                    out=out,
                    cache=cache,
                    on_step=on_step,
                    on_note=log.print,
                )
    for limit in limits:
        log.print(limit.words())
    results = out / RESULTS
    pictures = write_charts(results)
    log.print(f"rows added to {results}, drawn in {', '.join(map(str, pictures))}")
    context: dict[str, Any] = {"device": asdict(rows[0].device), "artifact_sha256": opened.sha256}
    if find_max_batch:
        context["memory_limits"] = [_limit_payload(limit) for limit in limits]
    show_result(as_json, {"rows": [asdict(row) for row in rows], **context}, bench_tables(rows))


def _show_profile(profile: StepProfile, path: Path, top: int, as_json: bool) -> None:
    log.print(f"profile added to {path}")
    show_result(as_json, as_document(profile), profile_tables(profile, top))


def _check_profile(profile: bool, given: Mapping[str, str | int | None], find_max_batch: bool) -> None:
    """What goes with --profile, and what only with it."""
    if not profile:
        if given["--top"] is not None:
            raise UsageError(f"--top is {given['--top']}, for the tables of --profile, which is not given")
        return
    if find_max_batch:
        raise UsageError(
            "--profile and --find-max-batch are two different measurements; expected one of them"
        )
    if given["--against"] is not None:
        raise UsageError("--against has no meaning with --profile: there is one contender")
    if given["--runtime"] not in (None, profiles.RUNTIME):
        raise UsageError(f"--runtime is {given['--runtime']!r}; --profile is for {profiles.RUNTIME}")


def _only(option: str, text: str) -> int:
    values = numbers(option, text)
    if len(values) != 1:
        raise UsageError(f"{option} is {text!r}; --profile takes one value at a time")
    return values[0]


def _limit_payload(limit: MemoryLimit) -> dict[str, Any]:
    return {
        "runtime": limit.runtime,
        "memory_mb": limit.memory_mb,
        "max_micro_batch": limit.largest,
        "killed_at": limit.killed_at,
    }


def _check_request(
    artifact: Artifact, device: str, image_size: int | None, memory: int | None, find_max_batch: bool
) -> None:
    size = artifact.spec.image_shape[1]
    if image_size not in (None, size):
        raise UsageError(
            f"--image-size is {image_size}, but {artifact.directory} is for {size}; export one for {image_size}"
        )
    if device != EMULATOR and (find_max_batch or memory is not None):
        given = "--find-max-batch" if find_max_batch else f"--memory {memory}"
        raise UsageError(
            f"{given} is for an emulator booted for the occasion; --device is {device!r}, expected {EMULATOR}"
        )


def _yardsticks(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [] if text == "none" else names("--against", text)
