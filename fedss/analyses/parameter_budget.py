"""`fedss analyse parameter-budget`: score against all parameters on a client, as in Table 2 of "Adaptive Sparse Federated
Learning in Large Output Spaces via Hashing"."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.console import Json
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.reporting.chart_style import Canvas, Chart, as_percent, colour_of, marker_of, plain_numbers
from server_sim.metrics import METRICS
from server_sim.runs.records import RunGroup
from server_sim.runs.trained_model import open_trained

NAME = "parameter-budget"


def command(runs: Runs, cache: Cache = DEFAULT_CACHE, out: Out = None, as_json: Json = False) -> None:
    """Score against all numbers that a client gets and trains: the layers before the output, and its rows of the output.

    [bold]Examples[/]

      fedss simulate hashing-table2-small --parallel 2
      fedss analyse parameter-budget runs/hashing-table2-small
    """
    publish(score_by_parameters(labelled_groups(runs), cache), NAME, out, as_json)


def score_by_parameters(groups: Sequence[RunGroup], cache: Path) -> Finding:
    rows = [_row(group, cache) for group in groups if group.first.experiment.scheme.sampler() is not None]
    title = METRICS[groups[0].first.experiment.evaluation.metric].title
    return Finding(
        title="Score against all parameters on a client",
        headers=["method", "layers", "rows", "of the output (%)", "parameters", f"{title} (%)"],
        cells=[
            [
                row["label"],
                f"{row['layers']:,}",
                f"{row['rows']:,.0f}",
                "" if row["share"] is None else f"{100 * row['share']:.1f}",
                f"{row['parameters']:,.0f}",
                "" if row["mean"] is None else f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(rows, title)],
        words="Numbers of the layers before the output, and of the rows of the output, that a client gets, trains and sends "
        "back in a round, on average.  A word that is read and predicted has one row.",
    )


def _row(group: RunGroup, cache: Path) -> Row:
    run = group.first
    model = run.experiment.model
    layers = sum(weights.size for weights in open_trained(run, cache).state.dense.values())
    num_rows = group.mean(lambda line: line.mean_width)
    return {
        "label": group.label,
        "layers": layers,
        "rows": num_rows,
        "share": None if run.num_classes is None else num_rows / run.num_classes,
        "parameters": layers + num_rows * (model.embedding_dim + (model.logits == "dot")),
        "mean": statistics.fmean(group.scores) if group.scores else None,
        "deviation": statistics.stdev(group.scores) if len(group.scores) > 1 else 0.0,
    }


def _chart(rows: Sequence[Row], title: str) -> Chart:
    with Canvas(NAME, 1, height=3.9) as canvas:
        (panel,) = canvas.panels
        for number, row in enumerate(row for row in rows if row["mean"] is not None):
            panel.errorbar(
                row["parameters"],
                row["mean"],
                yerr=row["deviation"],
                color=colour_of(number),
                marker=marker_of(number),
                linestyle="",
                label=row["label"],
            )
        plain_numbers(panel.xaxis)
        panel.set_xlabel("parameters on a client")
        panel.set_title(title)
        as_percent(panel)
        canvas.legend_below(panel)
        return canvas.finish("Score against all parameters that a client gets and trains.")
