"""`fedss bench`: what a step costs in time and memory, beside eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from android_harness.host import HostDevice
from android_harness.measurement import (
    YARDSTICK,
    ContendersDisagree,
    Measurement,
    append_rows,
    measure_side_by_side,
)
from android_harness.measurement_plot import plot_measurements
from fedss.comma_lists import names, numbers
from fedss.console import CheckFailed, Json, UsageError, log, progress, show_result
from ondevice.artifact import Artifact, open_artifact
from ondevice.installed_versions import installed_versions
from ondevice.step_process import CHANNELS_LAST

YARDSTICKS = (YARDSTICK, CHANNELS_LAST)


def command(
    artifact: Annotated[Path, typer.Argument(help="The artifact directory.")],
    device: Annotated[str, typer.Option(help="Where to run: host.")] = "host",
    runtime: Annotated[
        str | None, typer.Option(help="Some of the artifact's runtimes; all if not given.")
    ] = None,
    against: Annotated[
        str, typer.Option(help=f"What to compare with: some of {', '.join(YARDSTICKS)}, or none.")
    ] = ",".join(YARDSTICKS),
    batch: Annotated[
        str, typer.Option(help="Examples of a step; split into the artifact's micro-batches.")
    ] = "4",
    image_size: Annotated[
        int | None, typer.Option(help="Fail unless the artifact is for images of this size.")
    ] = None,
    widths: Annotated[str, typer.Option(help="Numbers of sampled classes.")] = "170",
    threads: Annotated[str, typer.Option(help="Threads of the runtime.")] = "1",
    warm_up: Annotated[int, typer.Option(min=0, help="Steps that are not counted.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are.")] = 10,
    out: Annotated[
        Path, typer.Option(help="Where rows accumulate (results.jsonl) and the plot goes.")
    ] = Path("runs/bench"),
    as_json: Json = False,
) -> None:
    """Median and p90 of CPU and wall time per step, peak memory, load and weight-swap time; contenders interleaved."""
    opened = open_artifact(artifact)
    _check_request(opened, device, image_size)
    contenders = _contenders(opened, runtime, against)
    sizes = [
        (examples, width, count)
        for examples in numbers("--batch", batch)
        for width in _widths(opened, widths)
        for count in numbers("--threads", threads)
    ]
    rows: list[Measurement] = []
    with progress("stepping") as advance:
        total = len(sizes) * (warm_up + steps)
        done = 0

        def count_step() -> None:
            nonlocal done
            done += 1
            advance(done, total)

        for examples, width, count in sizes:
            try:
                rows += measure_side_by_side(
                    opened, contenders, examples, width, count, warm_up, steps, count_step
                )
            except ContendersDisagree as error:
                raise CheckFailed(str(error)) from error
    context = {"device": _describe_host(), "versions": installed_versions(), "artifact_sha256": opened.sha256}
    append_rows(out / "results.jsonl", rows, context)
    plot_measurements(rows, out / "bench.png")
    log.print(f"rows added to {out / 'results.jsonl'}, plot in {out / 'bench.png'}")
    show_result(as_json, {"rows": [asdict(row) for row in rows], **context}, _tables(rows))


def _check_request(artifact: Artifact, device: str, image_size: int | None) -> None:
    if device != "host":
        raise UsageError(f"--device is {device!r}; expected host")
    size = artifact.spec.image_shape[1]
    if image_size not in (None, size):
        raise UsageError(
            f"--image-size is {image_size}, but {artifact.directory} is for {size}; export one for {image_size}"
        )


def _contenders(artifact: Artifact, runtime: str | None, against: str) -> list[str]:
    """Yardsticks first: the others are compared with them."""
    available = artifact.manifest.runtimes
    chosen = list(available) if runtime is None else names("--runtime", runtime)
    yardsticks = [] if against == "none" else names("--against", against)
    for option, given, allowed in (("--runtime", chosen, available), ("--against", yardsticks, YARDSTICKS)):
        unknown = [name for name in given if name not in allowed]
        if unknown:
            raise UsageError(f"{option} names {', '.join(unknown)}; expected some of {', '.join(allowed)}")
    return [*yardsticks, *chosen]


def _widths(artifact: Artifact, text: str) -> list[int]:
    widths = numbers("--widths", text)
    if max(widths) > artifact.max_width:
        raise UsageError(
            f"--widths has {max(widths)}; {artifact.directory} takes at most {artifact.max_width} classes"
        )
    return widths


def _describe_host() -> dict[str, Any]:
    host = HostDevice()
    try:
        return asdict(host.describe())
    finally:
        host.close()


def _tables(rows: Sequence[Measurement]) -> Group:
    """One table a size, narrow enough for a terminal of 80 columns."""
    by_size: dict[str, list[Measurement]] = {}
    for row in rows:
        size = f"batch {row.batch}, {row.image_size} px, {row.width} classes, {row.threads} thread(s)"
        by_size.setdefault(size, []).append(row)
    return Group(*(_table(size, own) for size, own in by_size.items()))


def _table(title: str, rows: Sequence[Measurement]) -> Table:
    columns: dict[str, Callable[[Measurement], str]] = {
        "runtime": lambda row: row.runtime,
        "micro-\nbatch": lambda row: str(row.micro_batch),
        "CPU ms\np50": lambda row: f"{row.cpu_ms_p50:.1f}",
        "\np90": lambda row: f"{row.cpu_ms_p90:.1f}",
        "wall ms\np50": lambda row: f"{row.wall_ms_p50:.1f}",
        "to\neager": lambda row: "" if row.ratio_to_eager is None else f"{row.ratio_to_eager:.2f}",
        "peak\nMB": lambda row: f"{row.peak_mb:.0f}",
        "load\nms": lambda row: f"{row.load_ms:.0f}",
        "swap\nms": lambda row: f"{row.swap_ms:.1f}",
    }
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for header in columns:
        table.add_column(header, justify="left" if header == "runtime" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table
