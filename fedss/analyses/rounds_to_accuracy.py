"""`fedss analyse rounds-to-accuracy`: rounds to a share of the centralized accuracy, as in Table 5 of Hsu et al. (2020)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated

import typer

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.sources import Runs, labelled_groups
from fedss.comma_lists import numbers
from fedss.console import Json, UsageError
from fedss.reporting.chart_style import Canvas, Chart, colour_of, place_bars
from server_sim.metrics.budgets import by_rounds
from server_sim.metrics.relative_accuracy import centralized_score, is_centralized, rounds_to
from server_sim.runs.records import RunGroup

NAME = "rounds-to-accuracy"


def command(
    runs: Runs,
    targets: Annotated[str, typer.Option(help="Per cent of the centralized accuracy.")] = "10,50,90",
    centralized: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="The accuracy of centralized training.",
            show_default="that of the centralized runs with the same model",
        ),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Communication rounds that every method needs to reach shares of the centralized accuracy.

    [bold]Examples[/]

      fedss analyse rounds-to-accuracy runs/fedvc-table2-small
      fedss analyse rounds-to-accuracy runs/mine --centralized 0.579 --targets 10,50,90
    """
    groups = labelled_groups(runs)
    federated = [group for group in groups if not is_centralized(group)]
    references = [
        centralized_score(group, groups) if centralized is None else centralized for group in federated
    ]
    finding = rounds_to_relative_accuracy(federated, references, numbers("--targets", targets))
    publish(finding, NAME, out, as_json)


def rounds_to_relative_accuracy(
    groups: Sequence[RunGroup], centralized: Sequence[float | None], targets: Sequence[int]
) -> Finding:
    """`centralized` has the accuracy that each group's is a share of."""
    rows: list[Row] = []
    for group, reference in zip(groups, centralized, strict=True):
        if not reference:
            raise UsageError(
                f"no centralized run of the same model is there to compare {group.label} with; run one "
                "(--set scheme.name=centralized), or say what it reaches with --centralized, above 0"
            )
        for target in targets:
            reached = [rounds_to(by_rounds(run), reference, target / 100) for run in group.runs]
            found = [rounds for rounds in reached if rounds is not None]
            rows.append(
                {
                    "label": group.label,
                    "target": target,
                    "centralized": reference,
                    "rounds": statistics.fmean(found) if len(found) == len(reached) else None,
                    "more_than": min(len(run.rounds) for run in group.runs),
                    "num_seeds": len(reached),
                }
            )
    cells = []
    for place, group in enumerate(groups):
        own = rows[place * len(targets) : (place + 1) * len(targets)]
        cells.append(
            [group.label, f"{100 * own[0]['centralized']:.1f}", *(_cell(row, own[0]) for row in own)]
        )
    return Finding(
        title="Rounds to reach a relative accuracy",
        headers=["method", "centralized (%)", *(f"{target} %" for target in targets)],
        cells=cells,
        rows=rows,
        charts=[_chart(groups, rows, targets)],
        words="Of the centralized accuracy of the same model.  Multiples are of the first target's rounds; "
        f"a run is evaluated every {groups[0].first.experiment.evaluation.every} rounds, and no finer than that.",
    )


def _cell(row: Row, first: Row) -> str:
    if row["rounds"] is None:
        return f"> {row['more_than']}"
    multiple = f" ({row['rounds'] / first['rounds']:.1f} x)" if first["rounds"] is not None else ""
    return f"{row['rounds']:.0f}{multiple}"


def _chart(groups: Sequence[RunGroup], rows: Sequence[Row], targets: Sequence[int]) -> Chart:
    """A bar per method and target; one that was not reached is pale, and as long as the run."""
    with Canvas(NAME, 1, height=1.6 + 0.2 * len(rows)) as canvas:
        (panel,) = canvas.panels
        thickness = 0.8 / len(targets)
        for number, row in enumerate(rows):
            group, target = divmod(number, len(targets))
            missed = row["rounds"] is None
            length = row["more_than"] if missed else row["rounds"]
            place = group + (target - (len(targets) - 1) / 2) * thickness
            label = f"{targets[target]} %" if group == 0 else None
            colour = colour_of(target)
            panel.barh(
                place, length, thickness * 0.9, color=colour, alpha=0.3 if missed else 1.0, label=label
            )
        panel.set_xlabel("rounds")
        place_bars(panel, [group.label for group in groups])
        canvas.legend_below(panel)
        return canvas.finish(
            "Rounds until a share of the centralized accuracy; pale: not reached by the end."
        )
