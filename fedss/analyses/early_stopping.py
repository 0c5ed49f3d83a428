"""`fedss analyse early-stopping`: the best evaluation of every run, and what was sent until then (Tables 3, 4 and 6 of
FedMLH)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.console import Json
from fedss.reporting.chart_style import Canvas, Chart, colour_of
from server_sim.runs.records import RunGroup, RunRecord

NAME = "early-stopping"


def command(runs: Runs, out: Out = None, as_json: Json = False) -> None:
    """The best score of every method, its round, and the communication volume until then.

    [bold]Example[/]

      fedss analyse early-stopping runs/debian-xc-fedmlh runs/debian-xc-fedavg
    """
    publish(best_evaluations(labelled_groups(runs)), NAME, out, as_json)


def volumes(run: RunRecord) -> list[tuple[float, float]]:
    """(bytes that all clients sent and were sent so far, score) of every evaluation."""
    points, sent = [], 0.0
    for line in run.rounds:
        sent += line.num_updates * (line.bytes_down + line.bytes_up)
        if line.score is not None:
            points.append((sent, line.score))
    return points


def best_evaluations(groups: Sequence[RunGroup]) -> Finding:
    """Runs that were never evaluated are left out."""
    rows: list[Row] = []
    for group in groups:
        scores, rounds, sent = [], [], []
        measures: list[dict[str, float]] = []
        for run in group.runs:
            evaluated = [line for line in run.rounds if line.score is not None]
            if not evaluated:
                continue
            # Of equally good ones the first: it is where one would have stopped.
            at, (volume, score) = max(enumerate(volumes(run)), key=lambda point: (point[1][1], -point[0]))
            scores.append(score)
            rounds.append(evaluated[at].round + 1)
            sent.append(volume)
            measures.append(evaluated[at].measures)
        if scores:
            rows.append(
                {
                    "label": group.label,
                    "best": statistics.fmean(scores),
                    "rounds": statistics.fmean(rounds),
                    "bytes": statistics.fmean(sent),
                    "num_seeds": len(scores),
                    "measures": {
                        name: statistics.fmean(told[name] for told in measures) for name in measures[0]
                    },
                }
            )
    cells = [
        [row["label"], f"{row['best']:.4f}", f"{row['rounds']:.0f}", f"{row['bytes'] / 1e6:,.0f}"]
        for row in rows
    ]
    return Finding(
        title="The best evaluation, and what it took",
        headers=["method", "best score", "rounds", "MB sent until then"],
        cells=cells,
        rows=rows,
        charts=[_chart(groups)],
        words="Down and up, of all clients together.  The best is chosen on the test split, as in the paper, so it is "
        "better than what stopping early on other data would give.",
    )


def _chart(groups: Sequence[RunGroup]) -> Chart:
    with Canvas(NAME, 1) as canvas:
        (panel,) = canvas.panels
        for number, group in enumerate(groups):
            for run in group.runs:
                points = volumes(run)
                label = group.label if run is group.first else None
                panel.plot(
                    [sent / 1e6 for sent, _ in points],
                    [score for _, score in points],
                    color=colour_of(number),
                    label=label,
                )
        panel.set_xlabel("MB sent")
        panel.set_ylabel("score")
        canvas.legend_below(panel)
        return canvas.finish("Score against communication volume, as in Figure 4 of FedMLH; a line per seed.")
