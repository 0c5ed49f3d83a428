"""The part of a report that sets tables beside the papers': `fedss report --paper`.

Ours are on other data and of fewer rounds, so that what can agree is the order.  It is told as the share of all pairs of
rows which the paper tells apart by more than its deviations, and which stand in the same order here.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations

from fedss.reporting.page import Section
from fedss.reporting.paper_columns import END, PaperColumn, Score, within_our_runs
from server_sim.experiment import experiment_names, load_experiment
from server_sim.runs.records import RunGroup, RunRecord, TableRecord
from server_sim.runs.tables import TableCell


@dataclass(frozen=True)
class PaperRow:
    """One row of a paper's table."""

    label: str
    scores: tuple[float, ...]
    """For every column, or one from the end of the runs for all of them."""
    deviation: float = 0.0
    num_negatives: int | None = None
    also: tuple[str, ...] = ()
    """Labels of the same row in experiments that name it otherwise, as small variants with one data set and one K do."""
    also_negatives: int | None = None
    """Of small variants with fewer classes."""

    def is_of(self, cell: TableCell) -> bool:
        labels, numbers = (self.label, *self.also), (self.num_negatives, self.also_negatives)
        return cell.label in labels and cell.num_negatives in numbers

    def score(self, column: int) -> float:
        return self.scores[min(column, len(self.scores) - 1)]


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
    columns: tuple[PaperColumn, ...]


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """All that `papers.toml` has."""
    content = tomllib.loads((resources.files("fedss") / "reporting" / "papers.toml").read_text())
    return tuple(
        PaperTable(
            **{
                **table,
                "experiments": tuple(table["experiments"]),
                "rows": tuple(_row(**row) for row in table["rows"]),
                "columns": tuple(map(PaperColumn.named, table.get("columns", [END]))),
            }
        )
        for table in content["tables"]
    )


def _row(scores: Sequence[float], also: Sequence[str] = (), **others: object) -> PaperRow:
    return PaperRow(scores=tuple(scores), also=tuple(also), **others)  # type: ignore[arg-type]


def paper_sections(tables: Sequence[TableRecord], runs: Sequence[RunRecord]) -> list[Section]:
    """One for every table that a paper has as well; `runs` are those of the tables, as far as they are there."""
    return [
        _beside(ours, paper, runs) for ours in tables for paper in paper_tables() if _is_compared(ours, paper)
    ]


def _is_compared(ours: TableRecord, paper: PaperTable) -> bool:
    known = [name for name in paper.experiments if name in experiment_names()]
    return ours.title in {load_experiment(name).title for name in known}


def _beside(ours: TableRecord, paper: PaperTable, runs: Sequence[RunRecord]) -> Section:
    section = Section(f"Beside {paper.table} of {paper.paper}")
    groups = {cell.folder: _group(ours, cell, runs) for cell in ours.cells}
    columns = within_our_runs(paper.columns, [group for group in groups.values() if group.runs])
    cells = [next((cell for cell in ours.cells if row.is_of(cell)), None) for row in paper.rows]
    found: list[list[Score | None]] = []
    for row, cell in zip(paper.rows, cells, strict=True):
        figures: list[Score | None] = []
        for column in columns:
            if cell is None:
                figures.append(None)
            elif column.kind == END or len(row.scores) < len(columns):
                figures.append((cell.mean, cell.deviation if cell.num_seeds > 1 else None))
            else:
                figures.append(column.score(groups[cell.folder], list(groups.values())))
        found.append(figures)
    with_negatives = any(row.num_negatives is not None for row in paper.rows)
    headers = ["row", *(["|N_k|"] if with_negatives else [])]
    for theirs, own in zip(paper.columns, columns, strict=True):
        headers += [f"paper{theirs.words}", f"ours{own.words}"]
    section.table(
        headers,
        [
            [
                row.label,
                *([_number(row.num_negatives)] if with_negatives else []),
                *(
                    word
                    for place, (column, figure) in enumerate(zip(columns, figures, strict=True))
                    for word in (_paper_cell(row, place), column.cell(figure))
                ),
            ]
            for row, figures in zip(paper.rows, found, strict=True)
        ],
    )
    what = f"{paper.metric[0].upper()}{paper.metric[1:]}"
    section.words(f"{what}.  The paper: {paper.at}.  Ours: {ours.title}.{_order(paper, columns, found)}")
    return section


def _group(ours: TableRecord, cell: TableCell, runs: Sequence[RunRecord]) -> RunGroup:
    folder = ours.path / cell.folder
    return RunGroup(cell.label, tuple(run for run in runs if folder in run.path.parents))


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _paper_cell(row: PaperRow, column: int) -> str:
    score = row.score(column)
    if math.isinf(score):
        return "not reached"
    return f"{score}" + (f" ± {row.deviation}" if row.deviation else "")


def _order(paper: PaperTable, columns: Sequence[PaperColumn], found: Sequence[Sequence[Score | None]]) -> str:
    """The pairs that stand in the paper's order, in every column."""
    parts = []
    for place, column in enumerate(columns):
        pairs = [
            (row.score(place), row.deviation, figure[0])
            for row, figures in zip(paper.rows, found, strict=True)
            if (figure := figures[place]) is not None
        ]
        same, told_apart = order_kept(pairs)
        if told_apart:
            parts.append(f"{same} of {told_apart}{column.words.removesuffix(' (%)')}")
    return (
        f"  Pairs of rows that the paper tells apart and that stand in its order here: {', '.join(parts)}."
        if parts
        else ""
    )


def order_kept(pairs: Sequence[tuple[float, float, float]]) -> tuple[int, int]:
    """Of (the paper's score, its deviation, ours): the pairs in the same order, of those that the paper tells apart by more
    than its deviations."""
    same = told_apart = 0
    for (first, spread, ours), (second, other_spread, theirs) in combinations(pairs, 2):
        difference = first - second
        if abs(difference) > spread + other_spread:
            told_apart += 1
            same += difference * (ours - theirs) > 0
    return same, told_apart
