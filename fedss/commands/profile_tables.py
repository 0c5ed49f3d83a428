"""A profile as tables for a terminal: by operator, by layer, and the costliest operators of single layers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedss.api.profiles import ProfileRow, StepProfile

LAYER_DEPTH = 3
"""Parts of a module's path that tell layers apart in the tables: blocks.3.expand."""
OUTSIDE = "outside operators"


def profile_tables(profile: StepProfile, top: int) -> Group:
    """`top`: rows of each table; what the others cost is one row more."""
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    step = f"{_cost(profile, profile.total)} {' '.join(_unit(profile).split())}"
    title = (
        f"{profile.runtime} on {profile.device}: batch {profile.batch} in micro-batches of {profile.micro_batch}, "
        f"{profile.image_size} px, {profile.width} classes, {threads}: {step} per step"
    )
    single = profile.grouped(lambda row: (row.layer, row.operator))
    return Group(
        Text(title, "italic"),
        Text("Numbers in brackets: million elements, where there is nothing to multiply.", "italic"),
        _table(profile, "operator", profile.by_operator(), top),
        _table(profile, "layer", profile.by_layer(LAYER_DEPTH), top),
        _table(profile, "operator of a layer", single, top),
    )


def _table(profile: StepProfile, header: str, rows: Sequence[ProfileRow], top: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column(header, overflow="fold")
    reached = "of\npeak" if profile.unit == "nanoseconds" else "of\nideal"
    for name in ("calls", _unit(profile), "share", "million\nmult-adds", reached):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:top]:
        table.add_row(*_cells(profile, row))
    if len(rows) > top:
        others = rows[top:]
        table.add_row(f"{len(others)} more", "", *_cost_cells(profile, sum(row.cost for row in others)))
    table.add_row(OUTSIDE, "", *_cost_cells(profile, profile.outside))
    return table


def _cells(profile: StepProfile, row: ProfileRow) -> list[str]:
    of_peak = profile.of_peak(row)
    return [
        " ".join(part for part in (row.layer, short_name(row.operator)) if part),
        str(row.calls),
        *_cost_cells(profile, row.cost),
        _work(row),
        "" if of_peak is None else f"{of_peak:.0%}",
    ]


def short_name(operator: str) -> str:
    """Without what all of ours have in common."""
    return operator.removeprefix("fedss::").removesuffix(".out")


def _work(row: ProfileRow) -> str:
    if row.multiply_adds:
        return f"{row.multiply_adds / 1e6:,.1f}"
    return f"({row.elements / 1e6:,.2f})"


def _cost_cells(profile: StepProfile, cost: float) -> list[str]:
    return [_cost(profile, cost), f"{profile.share(cost):.1%}"]


def _cost(profile: StepProfile, cost: float) -> str:
    return f"{cost / 1e6:,.3f}" if profile.unit == "nanoseconds" else f"{cost / 1e6:,.2f}"


def _unit(profile: StepProfile) -> str:
    return "CPU ms" if profile.unit == "nanoseconds" else "million\ninstr."
