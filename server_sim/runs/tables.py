"""Tables of many runs, as in the papers: every scheme, width and seed of an experiment's `[table]`, and their means."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from server_sim.experiment import ConfigurationError, Experiment
from server_sim.table_settings import TableRow


@dataclass(frozen=True)
class TableRun:
    """One run of a table."""

    label: str
    num_negatives: int | None
    seed: int
    experiment: Experiment

    @property
    def name(self) -> str:
        """Its folder under the table's."""
        return f"{row_folder(self.label, self.num_negatives)}/seed-{self.seed}"


@dataclass(frozen=True)
class TableCell:
    """A scheme at one width: mean and spread over the seeds."""

    label: str
    num_negatives: int | None
    num_seeds: int
    mean: float
    deviation: float
    mean_width: float
    width_share: float
    """|S_k| / n."""
    bytes_down_per_client: float
    bytes_up_per_client: float

    @property
    def folder(self) -> str:
        """Of its runs, under the table's."""
        return row_folder(self.label, self.num_negatives)


def row_folder(label: str, num_negatives: int | None) -> str:
    width = "" if num_negatives is None else f"-{num_negatives}"
    return f"{label.lower()}{width}"


def table_runs(experiment: Experiment) -> list[TableRun]:
    """Every run, seed by seed, so that a whole table of one seed is there first."""
    table = experiment.table
    if table is None:
        raise ConfigurationError("the experiment has no [table]")
    runs = []
    for seed in table.seeds:
        for row in table.rows:
            for label, varied in _variations(row):
                for num_negatives in row.num_negatives or (None,):
                    changes: dict[str, Any] = {**row.override, **varied, "seed": seed, "table": None}
                    if num_negatives is not None:
                        changes["scheme.num_negatives"] = num_negatives
                    runs.append(TableRun(label, num_negatives, seed, experiment.overridden(changes)))
    return runs


def _variations(row: TableRow) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every point of the row's grid, with its values in its label; the row itself where nothing varies.

    A field goes by its last word, or by all of them where two fields of the grid end alike.
    """
    last_words = Counter(_last_word(name) for name in row.vary)
    shown = {name: _last_word(name) if last_words[_last_word(name)] == 1 else name for name in row.vary}
    for values in itertools.product(*row.vary.values()):
        varied = dict(zip(row.vary, values, strict=True))
        parts = [f"{shown[name]} {value}" for name, value in varied.items()]
        yield ", ".join([row.label, *parts]), varied


def _last_word(field: str) -> str:
    return field.rpartition(".")[2]


def table_cells(results: Iterable[tuple[TableRun, dict[str, Any]]]) -> list[TableCell]:
    """The runs' summaries, averaged over seeds, in the order of the first seed."""
    grouped: dict[tuple[str, int | None], list[tuple[TableRun, dict[str, Any]]]] = {}
    for run, summary in results:
        grouped.setdefault((run.label, run.num_negatives), []).append((run, summary))
    cells = []
    for (label, num_negatives), members in grouped.items():
        metric = members[0][0].experiment.evaluation.metric
        values = [summary[metric] for _, summary in members]
        mean_width = statistics.fmean(summary["mean_width"] for _, summary in members)
        cells.append(
            TableCell(
                label=label,
                num_negatives=num_negatives,
                num_seeds=len(values),
                mean=statistics.fmean(values),
                deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
                mean_width=mean_width,
                width_share=mean_width / members[0][1]["num_classes"],
                bytes_down_per_client=statistics.fmean(s["bytes_down_per_client"] for _, s in members),
                bytes_up_per_client=statistics.fmean(s["bytes_up_per_client"] for _, s in members),
            )
        )
    return cells
