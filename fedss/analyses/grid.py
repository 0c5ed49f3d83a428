"""`fedss analyse grid`: accuracy over a grid of hyper-parameters, as in Figure 8 of Hsu, Qi and Brown (2020).

The effective learning rate of FedAvgM is η_eff = γ η / (1 − β).  A point is the best of all (β, η) with that η_eff.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.console import Json, UsageError
from fedss.reporting.chart_style import INK, Canvas, Chart
from server_sim.experiment import Experiment
from server_sim.metrics.relative_accuracy import centralized_score, is_centralized
from server_sim.runs.records import RunGroup

NAME = "grid"


def command(runs: Runs, out: Out = None, as_json: Json = False) -> None:
    """Best accuracy by effective learning rate and by how the data was split.

    [bold]Examples[/]

      fedss simulate fedvc-figure8-small --parallel 2
      fedss analyse grid runs/fedvc-figure8-small
    """
    publish(best_by_learning_rate(labelled_groups(runs)), NAME, out, as_json)


def effective_learning_rate(experiment: Experiment) -> float:
    momentum = experiment.server.momentum if experiment.server.optimizer == "fedavgm" else 0.0
    return experiment.client.learning_rate * experiment.server.learning_rate / (1 - momentum)


def best_by_learning_rate(groups: Sequence[RunGroup]) -> Finding:
    best: dict[tuple[str, float], Row] = {}
    for group in groups:
        experiment = group.first.experiment
        if is_centralized(group) or not group.scores:
            continue
        centralized = centralized_score(group, groups)
        score = sum(group.scores) / len(group.scores)
        # Learning rates are the same where they round to the same three digits: 0.01 / (1 − 0.9) is 0.1.
        point = (_split(experiment), float(f"{effective_learning_rate(experiment):.3g}"))
        row: Row = {
            "split": point[0],
            "effective_learning_rate": point[1],
            "mean": score,
            "relative": None if not centralized else score / centralized,
            "label": group.label,
        }
        if point not in best or best[point]["mean"] < score:
            best[point] = row
    if not best:
        raise UsageError("no federated run with a score is among them; run a table with `vary` first")
    rows = [best[point] for point in sorted(best)]
    return Finding(
        title="Accuracy by effective learning rate",
        headers=["split", "η_eff", "accuracy (%)", "of centralized (%)", "best setting"],
        cells=[
            [
                row["split"],
                f"{row['effective_learning_rate']:g}",
                f"{100 * row['mean']:.1f}",
                "" if row["relative"] is None else f"{100 * row['relative']:.1f}",
                row["label"],
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(rows)],
        words="η_eff is the server's times the client's learning rate by one less the momentum.  A point is the best of all "
        "settings with that rate.",
    )


def _split(experiment: Experiment) -> str:
    partition = experiment.data.partition
    if partition is None:
        return "as the data has it"
    concentration = partition.choice.settings.get("concentration")
    return partition.name if concentration is None else f"α = {concentration:g}"


def _chart(rows: Sequence[Row]) -> Chart:
    splits = list(dict.fromkeys(row["split"] for row in rows))
    rates = sorted({row["effective_learning_rate"] for row in rows})
    relative = all(row["relative"] is not None for row in rows)
    values = np.full((len(rates), len(splits)), math.nan)
    for row in rows:
        place = rates.index(row["effective_learning_rate"]), splits.index(row["split"])
        values[place] = row["relative" if relative else "mean"]
    with Canvas(NAME, 1, height=1.8 + 0.42 * len(rates)) as canvas:
        (panel,) = canvas.panels
        top = 1.0 if relative else float(np.nanmax(values))
        panel.imshow(values, cmap="Blues", vmin=0, vmax=top, aspect="auto")
        for (rate, split), value in np.ndenumerate(values):
            if not math.isnan(value):
                colour = "white" if value > 0.6 * top else INK
                panel.text(split, rate, f"{value:.0%}", ha="center", va="center", color=colour)
        panel.set_xticks(range(len(splits)), splits)
        panel.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        panel.set_ylabel("η_eff")
        panel.grid(visible=False)
        panel.set_title("accuracy / centralized accuracy" if relative else "accuracy")
        return canvas.finish("The best accuracy of every effective learning rate, by how the data was split.")
