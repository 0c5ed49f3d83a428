"""The memory of a step over time, as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedss.api.artifacts import MemoryTimeline
from ondevice.contract.artifact import MEGABYTE

BARS = " ▁▂▃▄▅▆▇█"
SPARKLINE = 72
TOP = 12


def memory_tables(timeline: MemoryTimeline) -> Group:
    """What is held, when, and what makes up the peak."""
    held = Table(
        "MB", "held for the step", title="memory of a step (ExecuTorch, at the bounds)", title_justify="left"
    )
    held.columns[0].justify = "right"
    for name in ("weights", "gradients", "examples", "arena"):
        held.add_row(_megabytes(getattr(timeline, name)), name)
    held.add_row(
        _megabytes(timeline.total), "in all; beside it the client, its runtime and the kernels' scratch"
    )
    call = timeline.calls[timeline.peak_call]
    peak = (
        f"In the arena {_megabytes(timeline.planned_peak)} MB are alive at most, at call {timeline.peak_call + 1} of "
        f"{len(timeline.calls)}, {call.operator} of {call.layer}; "
        f"{_megabytes(timeline.arena - timeline.planned_peak)} MB are lost between tensors."
    )
    alive = [
        kept + temporary for kept, temporary in zip(timeline.activations, timeline.temporaries, strict=True)
    ]
    backward = next((at for at, each in enumerate(timeline.calls) if each.backward), len(timeline.calls))
    turn = backward * SPARKLINE // len(timeline.calls)
    return Group(
        held,
        Text(peak),
        Text(sparkline(alive, SPARKLINE)),
        Text(f"{'forward'.ljust(turn)}^ backward"),
        _peak_table(timeline),
    )


def sparkline(values: Sequence[int], width: int) -> str:
    """The largest value of every stretch, as a row of bars."""
    width = min(width, len(values))
    ends = [at * len(values) // width for at in range(width + 1)]
    most = max(values, default=0) or 1
    largest = [max(values[begin:end]) for begin, end in pairwise(ends)]
    return "".join(BARS[-(-value * (len(BARS) - 1) // most)] for value in largest)


def timeline_payload(timeline: MemoryTimeline) -> dict[str, Any]:
    return {
        **{name: getattr(timeline, name) for name in ("weights", "gradients", "examples", "arena", "total")},
        "planned_peak": timeline.planned_peak,
        "peak_call": timeline.peak_call,
        "calls": [
            {
                "operator": call.operator,
                "layer": call.layer,
                "backward": call.backward,
                "activations": activations,
                "temporaries": temporaries,
            }
            for call, activations, temporaries in zip(
                timeline.calls, timeline.activations, timeline.temporaries, strict=True
            )
        ],
        "at_peak": [
            {"bytes": each.num_bytes, "layer": each.layer, "operator": each.operator, "kept": each.kept}
            for each in timeline.at_peak
        ],
    }


def _peak_table(timeline: MemoryTimeline) -> Table:
    by_writer: Counter[tuple[str, str, bool]] = Counter()
    for each in timeline.at_peak:
        by_writer[each.layer, each.operator, each.kept] += each.num_bytes
    table = Table("MB", "layer", "written by", "kind", title="alive at the peak", title_justify="left")
    table.columns[0].justify = "right"
    largest = by_writer.most_common(TOP)
    for (layer, operator, kept), num_bytes in largest:
        table.add_row(_megabytes(num_bytes), layer, operator, "activation" if kept else "temporary")
    others = len(by_writer) - len(largest)
    if others:
        rest = sum(by_writer.values()) - sum(num_bytes for _, num_bytes in largest)
        table.add_row(_megabytes(rest), f"{others} more", "", "")
    return table


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / MEGABYTE:.1f}"
