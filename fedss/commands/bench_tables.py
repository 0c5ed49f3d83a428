"""Measurements as tables for a terminal: one per size, narrow enough for 80 columns; only figures that some row has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from android_harness.measuring.measurement import Measurement

_FIGURES: dict[str, Callable[[Measurement], str]] = {
    "million\ninstructions": lambda row: _number(_millions(row.instructions_per_step), 1),
    "CPU ms\np50": lambda row: _number(row.cpu_ms_p50, 1),
    "\np90": lambda row: _number(row.cpu_ms_p90, 1),
    "wall ms\np50": lambda row: _number(row.wall_ms_p50, 1),
    "to\neager": lambda row: _number(row.ratio_to_eager, 2),
    "peak\nMB": lambda row: _number(row.peak_mb, 0),
    "load\nms": lambda row: _number(row.load_ms, 0),
    "swap\nms": lambda row: _number(row.swap_ms, 1),
}


def bench_tables(rows: Sequence[Measurement]) -> Group:
    by_size: dict[str, list[Measurement]] = {}
    for row in rows:
        threads = "1 thread" if row.threads == 1 else f"{row.threads} threads"
        size = f"batch {row.batch}, {row.image_size} px, {row.width} classes, {threads}"
        by_size.setdefault(size, []).append(row)
    return Group(*(part for size, own in by_size.items() for part in (Text(size, "italic"), _table(own))))


def _table(rows: Sequence[Measurement]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column("runtime", no_wrap=True)
    table.add_column("micro-\nbatch", justify="right", no_wrap=True)
    measured = {header: cell for header, cell in _FIGURES.items() if any(cell(row) for row in rows)}
    for header in measured:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.runtime, str(row.micro_batch), *(cell(row) for cell in measured.values()))
    return table


def _millions(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
