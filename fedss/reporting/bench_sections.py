"""The parts of a report that are about measurements: one section per device, emulated ones by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from android_harness.measuring.records import DeviceRows, MeasurementRow
from fedss.reporting.bench_charts import device_charts, head_chart
from fedss.reporting.page import Headline, Section

Cell = Callable[[MeasurementRow], str]


def bench_headlines(devices: Sequence[DeviceRows]) -> list[Headline]:
    """The smallest client that was measured."""
    rows = [row for measured in devices for row in measured.rows if row.peak_mb is not None]
    if not rows:
        return []
    row = min(rows, key=lambda each: each.peak_mb or 0)
    words = f"peak of {row.runtime}, micro-batch {row.micro_batch}, {row.image_size} px, on {row.device}"
    return [Headline(f"{row.peak_mb:.0f} MB", words)]


def bench_section(measured: DeviceRows, number: int) -> Section:
    """Everything about one device; `number` keeps the names of its pictures apart from another's."""
    section = Section(f"{'Emulated' if measured.emulated else 'Measured'}: {measured.device}")
    if measured.emulated:
        section.note(
            "This device is emulated: memory is real, time is not.  Its work is counted in instructions; "
            "no time of it is shown."
        )
    name = f"bench-{number}"
    for chart in device_charts(measured, name):
        section.chart(chart)
    head = head_chart(measured, f"{name}-classes")
    if head is not None:
        section.chart(head)
    columns = _columns(measured)
    section.table(
        list(columns), [[cell(row) for cell in columns.values()] for row in measured.rows], folded="All rows"
    )
    if measured.num_superseded:
        section.words(f"{measured.num_superseded} older rows of the same measurements are not shown.")
    for versions in dict.fromkeys(row.versions for row in measured.rows if row.versions):
        section.words("Versions: " + ", ".join(f"{name} {number}" for name, number in versions) + ".")
    return section


def _columns(measured: DeviceRows) -> dict[str, Cell]:
    columns: dict[str, Cell] = {
        "runtime": lambda row: row.runtime,
        "batch": lambda row: str(row.batch),
        "micro-batch": lambda row: str(row.micro_batch),
        "px": lambda row: str(row.image_size),
        "|S_k|": lambda row: str(row.width),
        "threads": lambda row: str(row.threads),
        "peak MB": lambda row: _number(row.peak_mb, 0),
    }
    if measured.emulated:
        columns["million instructions"] = lambda row: _number(
            None if row.instructions_per_step is None else row.instructions_per_step / 1e6, 0
        )
    else:
        columns |= {
            "CPU ms p50": lambda row: _number(row.cpu_ms_p50, 1),
            "p90": lambda row: _number(row.cpu_ms_p90, 1),
            "wall ms p50": lambda row: _number(row.wall_ms_p50, 1),
            "wall p90": lambda row: _number(row.wall_ms_p90, 1),
            "to eager": lambda row: _number(row.ratio_to_eager, 2),
            "load ms": lambda row: _number(row.load_ms, 0),
            "swap ms": lambda row: _number(row.swap_ms, 1),
        }
    columns["artifact"] = lambda row: row.artifact_sha256[:8]
    return columns


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
