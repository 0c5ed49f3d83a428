"""`fedss analyse budgets`: accuracy at rounds and at batches, as in Tables 2 to 4 of Hsu, Qi and Brown (2020)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.comma_lists import numbers
from fedss.console import Json
from fedss.reporting.chart_style import Canvas, Chart, as_percent, colour_of, line_of, marker_of
from server_sim.metrics import METRICS
from server_sim.metrics.budgets import Points, by_batches, by_rounds, score_within
from server_sim.runs.records import RunGroup, RunRecord

NAME = "budgets"
_STAGES = (0.2, 0.5, 1.0)
"""Of the shortest run: the papers look at 1,000, 2,500 and 5,000 rounds."""


def command(
    runs: Runs,
    rounds: Annotated[
        str | None,
        typer.Option(help="Rounds to look at.", show_default="a fifth, half and all of the shortest run"),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option(
            help="Batches to look at, counted over the largest client of each round.",
            show_default="a fifth, half and all of the shortest run",
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Accuracy at a number of rounds, and at a number of batches, which stands for time.

    [bold]Examples[/]

      fedss analyse budgets runs/fedvc-table2-small
      fedss analyse budgets runs/fedvc-table2-small --rounds 4,10 --batches 100,200,400
    """
    finding = accuracy_at_budgets(
        labelled_groups(runs),
        None if rounds is None else numbers("--rounds", rounds),
        None if batches is None else numbers("--batches", batches),
    )
    publish(finding, NAME, out, as_json)


def accuracy_at_budgets(
    groups: Sequence[RunGroup], rounds: Sequence[int] | None = None, batches: Sequence[int] | None = None
) -> Finding:
    rounds = _stages(groups, by_rounds) if rounds is None else rounds
    batches = _stages(groups, by_batches) if batches is None else batches
    budgets = [("round", by_rounds, budget) for budget in rounds]
    budgets += [("batch", by_batches, budget) for budget in batches]
    rows: list[Row] = []
    for group in groups:
        for kind, points, budget in budgets:
            scores = [score_within(points(run), budget) for run in group.runs]
            reached = [score for score in scores if score is not None]
            whole = len(reached) == len(scores)
            rows.append(
                {
                    "label": group.label,
                    "budget": kind,
                    "at": budget,
                    "num_seeds": len(reached),
                    "mean": statistics.fmean(reached) if whole else None,
                    "deviation": statistics.stdev(reached) if whole and len(reached) > 1 else None,
                }
            )
    columns = len(budgets)
    cells = [
        [group.label, *(_cell(row) for row in rows[place * columns : (place + 1) * columns])]
        for place, group in enumerate(groups)
    ]
    return Finding(
        title="Accuracy at rounds and at batches",
        headers=["method", *(f"@{kind} {budget:,}" for kind, _, budget in budgets)],
        cells=cells,
        rows=rows,
        charts=[_chart(groups)],
        words="Per cent, the last evaluation within each budget.  Batches are those of the largest client of every round, "
        "a proxy for time; an empty cell is a run that ended before the budget was spent.",
    )


def _stages(groups: Sequence[RunGroup], points: Callable[[RunRecord], Points]) -> list[int]:
    ends = [found[-1][0] for group in groups for run in group.runs if (found := points(run))]
    return list(dict.fromkeys(max(1, round(stage * min(ends))) for stage in _STAGES)) if ends else []


def _cell(row: Row) -> str:
    if row["mean"] is None:
        return ""
    spread = f" ± {100 * row['deviation']:.1f}" if row["deviation"] is not None else ""
    return f"{100 * row['mean']:.1f}{spread}"


def _chart(groups: Sequence[RunGroup]) -> Chart:
    metric = groups[0].first.experiment.evaluation.metric
    with Canvas(NAME, 2, height=3.8 + 0.2 * (len(groups) // 3)) as canvas:
        panels = zip(
            canvas.panels, (by_rounds, by_batches), ("rounds", "batches of the largest client"), strict=True
        )
        for panel, points, words in panels:
            for number, group in enumerate(groups):
                series = [points(run) for run in group.runs]
                length = min(map(len, series))
                x = [statistics.fmean(own[i][0] for own in series) for i in range(length)]
                y = [statistics.fmean(own[i][1] for own in series) for i in range(length)]
                panel.plot(
                    x,
                    y,
                    color=colour_of(number),
                    linestyle=line_of(number),
                    marker=marker_of(number),
                    markersize=3.5,
                    label=group.label,
                )
            panel.set_xlabel(words)
            panel.set_ylim(bottom=0)
            as_percent(panel)
            panel.set_title(METRICS[metric].title)
        canvas.legend_below(canvas.panels[0])
        return canvas.finish(
            "Means over the seeds.  Left by rounds; right by the time that rounds take, in batches."
        )
