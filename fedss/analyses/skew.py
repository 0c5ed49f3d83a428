"""`fedss analyse skew`: accuracy against how unlike the clients are (EMD), as in Figures 4 and 6 of Hsu et al. (2020)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.console import Json
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.reporting.chart_style import Canvas, Chart, as_percent, colour_of, marker_of
from server_sim.data.partition_statistics import describe_partition
from server_sim.data.population import open_population
from server_sim.metrics.relative_accuracy import centralized_score, is_centralized
from server_sim.preparation import population_path
from server_sim.runs.records import RunGroup

NAME = "skew"


def command(runs: Runs, cache: Cache = DEFAULT_CACHE, out: Out = None, as_json: Json = False) -> None:
    """The mean distance of clients from the population, and the accuracy that a federation of them reaches.

    [bold]Example[/]

      fedss analyse skew runs/fedvc-figure4-small
    """
    groups = labelled_groups(runs)
    distances: dict[str, float] = {}
    for group in groups:
        data = group.first.experiment.data
        key = data.model_dump_json()
        if key not in distances:
            distances[key] = describe_partition(open_population(population_path(data, cache))).mean_emd
    emd = [distances[group.first.experiment.data.model_dump_json()] for group in groups]
    publish(accuracy_by_skew(groups, emd), NAME, out, as_json)


def accuracy_by_skew(groups: Sequence[RunGroup], emd: Sequence[float]) -> Finding:
    """`emd` has the mean distance of each group's population."""
    rows: list[Row] = []
    for group, distance in zip(groups, emd, strict=True):
        experiment = group.first.experiment
        if is_centralized(group) or not group.scores:
            continue
        centralized = centralized_score(group, groups)
        score = statistics.fmean(group.scores)
        rows.append(
            {
                "label": group.label,
                "method": f"{experiment.scheme.title}, {experiment.server.optimizer}, "
                f"K = {experiment.server.clients_per_round}",
                "emd": distance,
                "mean": score,
                "relative": None if not centralized else score / centralized,
            }
        )
    rows.sort(key=lambda row: (row["method"], row["emd"]))
    return Finding(
        title="Accuracy against how unlike the clients are",
        headers=["run", "EMD", "accuracy (%)", "of centralized (%)"],
        cells=[
            [
                row["label"],
                f"{row['emd']:.2f}",
                f"{100 * row['mean']:.1f}",
                "" if row["relative"] is None else f"{100 * row['relative']:.1f}",
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(rows)],
        words="EMD is the mean distance between the classes of a client and those of all: 0 for clients that are small "
        "copies of the whole, 2 at most.",
    )


def _chart(rows: Sequence[Row]) -> Chart:
    relative = all(row["relative"] is not None for row in rows)
    with Canvas(NAME, 1, height=3.8) as canvas:
        (panel,) = canvas.panels
        for number, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
            own = [row for row in rows if row["method"] == method]
            x, y = [row["emd"] for row in own], [row["relative" if relative else "mean"] for row in own]
            style = {"color": colour_of(number), "marker": marker_of(number), "label": method}
            panel.plot(x, y, markersize=6, **style)
        panel.set_xlabel("mean EMD of the clients")
        panel.set_xlim(0, 2.02)
        panel.set_ylim(bottom=0)
        panel.set_title("accuracy / centralized accuracy" if relative else "accuracy")
        as_percent(panel)
        canvas.legend_below(panel)
        return canvas.finish("Data is increasingly non-identical to the right.")
