"""The part of a report that sets tables beside the papers': `fedss report --paper`.

Ours are on other data and of fewer rounds, so that what can agree is the order.  It is told as the share of all pairs of
rows which the paper tells apart by more than its deviations, and which stand in the same order here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations

from fedss.reporting.page import Section
from server_sim.experiment import experiment_names, load_experiment
from server_sim.runs.records import TableRecord
from server_sim.runs.tables import TableCell


@dataclass(frozen=True)
class PaperRow:
    """One figure of a paper's table."""

    label: str
    score: float
    """In per cent."""
    deviation: float = 0.0
    num_negatives: int | None = None
    also: str = ""
    """The label of small variants, which have one data set and one K."""

    def is_of(self, cell: TableCell) -> bool:
        return cell.label in (self.label, self.also) and cell.num_negatives == self.num_negatives


@dataclass(frozen=True)
class PaperTable:
    """A paper's table, and the experiments that it is compared with."""

    name: str
    paper: str
    table: str
    metric: str
    at: str
    """On which data, and after how long."""
    experiments: tuple[str, ...]
    rows: tuple[PaperRow, ...]


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """All that `papers.toml` has."""
    content = tomllib.loads((resources.files("fedss") / "reporting" / "papers.toml").read_text())
    return tuple(
        PaperTable(
            **{
                **table,
                "experiments": tuple(table["experiments"]),
                "rows": tuple(PaperRow(**row) for row in table["rows"]),
            }
        )
        for table in content["tables"]
    )


def paper_sections(tables: Sequence[TableRecord]) -> list[Section]:
    """One for every table that a paper has as well."""
    return [_beside(ours, paper) for ours in tables for paper in paper_tables() if _is_compared(ours, paper)]


def _is_compared(ours: TableRecord, paper: PaperTable) -> bool:
    known = [name for name in paper.experiments if name in experiment_names()]
    return ours.title in {load_experiment(name).title for name in known}


def _beside(ours: TableRecord, paper: PaperTable) -> Section:
    section = Section(f"Beside {paper.table} of {paper.paper}")
    pairs = [(row, next((cell for cell in ours.cells if row.is_of(cell)), None)) for row in paper.rows]
    section.table(
        ["row", "|N_k|", f"the paper's {paper.metric} (%)", "ours (%)"],
        [
            [
                row.label,
                "" if row.num_negatives is None else str(row.num_negatives),
                f"{row.score:g}" + (f" ± {row.deviation:g}" if row.deviation else ""),
                "" if cell is None else f"{100 * cell.mean:.1f} ± {100 * cell.deviation:.1f}",
            ]
            for row, cell in pairs
        ],
    )
    same, told_apart = order_kept([(row, cell) for row, cell in pairs if cell is not None])
    words = f"The paper: {paper.at}.  Ours: {ours.title}."
    if told_apart:
        words += f"  Of {told_apart} pairs of rows that the paper tells apart, {same} stand in the same order here."
    section.words(words)
    return section


def order_kept(pairs: Sequence[tuple[PaperRow, TableCell]]) -> tuple[int, int]:
    """Pairs of rows that stand in the same order in both, of those that the paper tells apart by more than deviations."""
    same = told_apart = 0
    for (first, ours), (second, theirs) in combinations(pairs, 2):
        difference = first.score - second.score
        if abs(difference) > first.deviation + second.deviation:
            told_apart += 1
            same += difference * (ours.mean - theirs.mean) > 0
    return same, told_apart
