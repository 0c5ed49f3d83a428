"""What a column of a paper's table is, and what our runs have there: a score at the end or within a budget, or rounds.

A run here is shorter than the paper's.  Where all of them are as long as a column asks for, it is taken at its word; else
the same shares of the shortest run stand for the shares that the columns are of the paper's longest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from server_sim.metrics.budgets import by_batches, by_rounds, score_within
from server_sim.metrics.relative_accuracy import centralized_score, is_centralized, rounds_to
from server_sim.runs.records import RunGroup

END = "end"
_BUDGETS = {"round": by_rounds, "batch": by_batches}
_REACH = "reach"

Score = tuple[float, float | None]
"""A mean, and its deviation where there are several seeds."""


@dataclass(frozen=True)
class PaperColumn:
    kind: str
    """`end`, `round`, `batch` or `reach`."""
    at: int = 0
    """The budget, or the per cent of the centralized accuracy."""

    @classmethod
    def named(cls, name: str) -> PaperColumn:
        kind, _, at = name.partition(" ")
        if kind not in (END, _REACH, *_BUDGETS):
            raise ValueError(
                f"a column is called {name!r}; expected end, or round, batch or reach and a number"
            )
        return cls(kind, int(at or 0))

    @property
    def words(self) -> str:
        """As it stands in a heading, behind what is measured."""
        if self.kind == END:
            return " (%)"
        return f" to {self.at} %" if self.kind == _REACH else f" @{self.kind} {self.at:,} (%)"

    def score(self, group: RunGroup, groups: Sequence[RunGroup]) -> Score | None:
        """What the runs of one row have; None where they have nothing to compare."""
        if self.kind == _REACH:
            centralized = centralized_score(group, groups) if group.runs else None
            if not centralized or is_centralized(group):
                return None
            found = [rounds_to(by_rounds(run), centralized, self.at / 100) for run in group.runs]
            return _mean([math.inf if rounds is None else rounds for rounds in found])
        scores = [score_within(_BUDGETS[self.kind](run), self.at) for run in group.runs]
        reached = [score for score in scores if score is not None]
        return _mean(reached) if reached and len(reached) == len(scores) else None

    def cell(self, score: Score | None) -> str:
        if score is None:
            return ""
        mean, deviation = score
        if self.kind == _REACH:
            return "not reached" if math.isinf(mean) else f"{mean:.0f}"
        return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def within_our_runs(columns: Sequence[PaperColumn], groups: Sequence[RunGroup]) -> list[PaperColumn]:
    """The columns as our runs can have them."""
    found = []
    for column in columns:
        ends = _ends(column.kind, groups) if column.kind in _BUDGETS else []
        longest = max(other.at for other in columns if other.kind == column.kind)
        if ends and min(ends) < longest:
            column = replace(column, at=max(1, round(column.at / longest * min(ends))))
        found.append(column)
    return found


def _ends(kind: str, groups: Sequence[RunGroup]) -> list[int]:
    """Where the runs with clients end, in rounds or batches."""
    series = [_BUDGETS[kind](run) for group in groups if not is_centralized(group) for run in group.runs]
    return [points[-1][0] for points in series if points]


def _mean(values: Sequence[float]) -> Score:
    finite = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.fmean(values), statistics.stdev(values) if finite else None
