"""`fedss analyse head-parameters`: score against the head on a client, as in Figures 5 and 10 of the FedSS paper."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.console import Json
from fedss.reporting.chart_style import Canvas, Chart, as_percent, colour_of, marker_of, plain_numbers
from server_sim.metrics import METRICS
from server_sim.runs.records import RunGroup

NAME = "head-parameters"


def command(runs: Runs, out: Out = None, as_json: Json = False) -> None:
    """Score against the numbers of the classification layer that are sent to a client and trained there.

    [bold]Example[/]

      fedss analyse head-parameters runs/glyphs-table1
    """
    publish(score_by_head_parameters(labelled_groups(runs)), NAME, out, as_json)


def score_by_head_parameters(groups: Sequence[RunGroup]) -> Finding:
    rows: list[Row] = []
    for group in groups:
        model = group.first.experiment.model
        per_class = model.embedding_dim + (model.logits == "dot")
        federated = group.first.experiment.scheme.sampler() is not None
        classes = group.mean(lambda line: line.mean_width) if federated else None
        rows.append(
            {
                "label": group.label,
                "scheme": group.first.experiment.scheme.label,
                "classes": classes,
                "parameters": None if classes is None else classes * per_class,
                "mean": statistics.fmean(group.scores) if group.scores else None,
                "deviation": statistics.stdev(group.scores) if len(group.scores) > 1 else 0.0,
            }
        )
    title = METRICS[groups[0].first.experiment.evaluation.metric].title
    return Finding(
        title="Score against parameters of the head on a client",
        headers=["method", "classes", "head parameters", f"{title} (%)"],
        cells=[
            [
                row["label"],
                "" if row["classes"] is None else f"{row['classes']:,.0f}",
                "" if row["parameters"] is None else f"{row['parameters']:,.0f}",
                "" if row["mean"] is None else f"{100 * row['mean']:.1f}",
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(rows, title)],
        words="Numbers of the classification layer that a client gets, trains and sends back in a round, on average.  "
        "Centralized training has no clients.",
    )


def _chart(rows: Sequence[Row], title: str) -> Chart:
    with Canvas(NAME, 1, height=3.9) as canvas:
        (panel,) = canvas.panels
        for number, scheme in enumerate(dict.fromkeys(row["scheme"] for row in rows)):
            own = [row for row in rows if row["scheme"] == scheme and row["mean"] is not None]
            placed = sorted((row["parameters"], row["mean"]) for row in own if row["parameters"] is not None)
            colour = colour_of(number)
            if placed:
                x, y = zip(*placed, strict=True)
                panel.plot(x, y, color=colour, marker=marker_of(number), markersize=6.5, label=scheme)
            elif own:
                panel.axhline(own[0]["mean"], color=colour, linestyle="--", linewidth=1.2, label=scheme)
        panel.set_xscale("log")
        plain_numbers(panel.xaxis)
        panel.set_xlabel("parameters of the classification layer on a client (log scale)")
        panel.set_title(title)
        as_percent(panel)
        canvas.legend_below(panel)
        return canvas.finish(
            "Score against the head's parameters that a client gets and trains; dashed: no clients."
        )
