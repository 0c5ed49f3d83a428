"""`fedss analyse composition`: which classes serve as negatives, as in Figure 6 of the FedSS paper.

FedSS pushes an example away from |N_k| sampled classes and from the client's |P_k| − 1 others.  NegOnly with |N_k| sampled
classes has fewer; NegOnly with |N_k| + |P_k| − 1 has as many, all of them sampled.  If only their number counted, the last
would do as well as FedSS.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.console import Json, UsageError
from fedss.reporting.chart_style import Canvas, Chart, as_percent, colour_of
from server_sim.metrics import METRICS
from server_sim.runs.records import RunGroup

NAME = "composition"


def command(runs: Runs, out: Out = None, as_json: Json = False) -> None:
    """FedSS and NegOnly with as many sampled negatives, and with as many negatives in all.

    [bold]Example[/]

      fedss analyse composition runs/fedss-figure6-small
    """
    publish(composition_of_negatives(labelled_groups(runs)), NAME, out, as_json)


def composition_of_negatives(groups: Sequence[RunGroup]) -> Finding:
    sampled = [
        group
        for group in groups
        if group.first.experiment.scheme.name in ("fedss", "negatives_only") and group.scores
    ]
    if not sampled:
        raise UsageError("no run of fedss or negatives_only is among them; fedss-figure6 has both")
    rows: list[Row] = []
    for group in sampled:
        scheme = group.first.experiment.scheme
        drawn = int(getattr(scheme, "num_negatives", 0))
        # |S_k| is |P_k| + |N_k|; an example's own class pushes nothing.
        others = group.mean(lambda line: line.mean_width) - drawn - 1
        rows.append(
            {
                "label": group.label,
                "scheme": scheme.label,
                "sampled": drawn,
                "negatives": drawn + (others if scheme.name == "fedss" else 0),
                "mean": statistics.fmean(group.scores),
                "deviation": statistics.stdev(group.scores) if len(group.scores) > 1 else 0.0,
            }
        )
    title = METRICS[sampled[0].first.experiment.evaluation.metric].title
    return Finding(
        title="What the negatives are made of",
        headers=["method", "sampled negatives", "negatives in all", f"{title} (%)"],
        cells=[
            [
                row["label"],
                f"{row['sampled']}",
                f"{row['negatives']:,.0f}",
                f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(rows, title)],
        words="Classes that push an example away.  FedSS has the client's other classes among them, NegOnly has sampled "
        "ones alone: at the same number of negatives in all, only what they are made of differs.",
    )


def _chart(rows: Sequence[Row], title: str) -> Chart:
    with Canvas(NAME, 1, height=3.8) as canvas:
        (panel,) = canvas.panels
        for number, scheme in enumerate(dict.fromkeys(row["scheme"] for row in rows)):
            own = sorted(
                (row["negatives"], row["mean"], row["deviation"]) for row in rows if row["scheme"] == scheme
            )
            x, y, spread = zip(*own, strict=True)
            panel.errorbar(x, y, yerr=spread, color=colour_of(number), marker="o", capsize=3, label=scheme)
        panel.set_xscale("log")
        panel.set_xlabel("classes that push an example away (log scale)")
        panel.set_title(title)
        panel.set_ylim(bottom=0)
        as_percent(panel)
        canvas.legend_below(panel)
        return canvas.finish("Score against the number of negatives, by what they are made of.")
