"""The figures of runs: what they learnt, and what it cost on the way."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedss.reporting.chart_style import (
    FAINT,
    GRID,
    INK,
    Canvas,
    Chart,
    as_percent,
    colour_of,
    line_of,
    marker_of,
    place_bars,
    plain_numbers,
)
from server_sim.metrics import METRICS
from server_sim.runs.records import RoundRecord, RunGroup, RunRecord, TableRecord
from server_sim.runs.tables import TableCell

MAX_MARKED_ROUNDS = 60  # lines of more rounds than this carry no markers
_SAME_WIDTH = 1.02  # clients of rows that draw anew hold nearly as many columns, not exactly
Series = tuple[list[float], list[float]]


def learning_chart(groups: Sequence[RunGroup]) -> Chart:
    """Score and loss against the round."""
    with Canvas("learning", 2, height=_height_for_legend(groups, 3.5)) as canvas:
        score, loss = canvas.panels
        for number, group in enumerate(groups):
            _draw_mean(score, number, group, _score_by_round)
            _draw_mean(loss, number, group, lambda run: _by_round(run, lambda line: line.mean_loss))
        _name_score(score, groups)
        for panel in (score, loss):
            panel.set_xlabel("round")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.set_xlim(left=0)
        loss.set_title("training loss")
        canvas.legend_below(loss)
        return canvas.finish(f"{_band_words(groups)}The loss is the clients' own, before they send.")


def communication_chart(groups: Sequence[RunGroup]) -> Chart:
    """Score against everything that a client in every round would have received and sent."""
    with Canvas("communication", 1, height=_height_for_legend(groups, 3.5)) as canvas:
        (panel,) = canvas.panels
        for number, group in enumerate(groups):
            _draw_mean(panel, number, group, _score_by_megabytes)
        _name_score(panel, groups)
        panel.set_xlabel("MB down and up, of a client that takes part in every round")
        panel.set_xlim(left=0)
        canvas.legend_below(panel)
        return canvas.finish("What a score costs in communication: counted on the encoded messages.")


def bytes_chart(groups: Sequence[RunGroup]) -> Chart:
    """Per client and round: bytes down and up beside the full softmax, and the share of the classes that it holds."""
    with Canvas("bytes", 2, height=1.5 + 0.42 * len(groups)) as canvas:
        sizes, shares = canvas.panels
        places = np.arange(len(groups))
        full = [(group.first.full_softmax_bytes or 0) / 1e6 for group in groups]
        down = [group.mean(lambda line: line.bytes_down) / 1e6 for group in groups]
        up = [group.mean(lambda line: line.bytes_up) / 1e6 for group in groups]
        if any(full):
            sizes.barh(places, full, height=0.74, color=GRID, label="with all n columns")
        sizes.barh(places, down, height=0.44, color=colour_of(0), label="down")
        sizes.barh(places, up, left=down, height=0.44, color=colour_of(5), label="up")
        sizes.set_title("MB per client and round")
        sizes.set_xlim(left=0)
        place_bars(sizes, [group.label for group in groups])
        canvas.legend_below(sizes)
        held = [_share(group) for group in groups]
        shares.barh(places, [share or 0 for share in held], height=0.44, color=colour_of(2))
        for place, (group, share) in enumerate(zip(groups, held, strict=True)):
            width = group.mean(lambda line: line.mean_width)
            words = (
                f"{width:.0f}"
                if share is None
                else f"{share:.1%}  ({width:.0f} of {group.first.num_classes})"
            )
            inside = share is not None and share > 0.55
            shares.annotate(
                words,
                (share or 0, place),
                xytext=(-5 if inside else 5, 0),
                textcoords="offset points",
                ha="right" if inside else "left",
                va="center",
                color="white" if inside else INK,
            )
        shares.set_title("classes that a client holds, |S_k| of n")
        shares.set_xlim(0, 1)
        shares.xaxis.set_major_formatter(PercentFormatter(1))
        place_bars(shares, [""] * len(groups))
        return canvas.finish(
            "One client, one round.  The pale bar is the same message with all n columns: "
            "extractor and columns, without their ids."
        )


def table_chart(table: TableRecord, score_name: str, name: str) -> Chart:
    """Score against the columns that a client holds, as in Figure 5 of the paper; a bar per row where all hold as many."""
    widths = [cell.mean_width for cell in table.cells if cell.bytes_down_per_client]
    if widths and max(widths) < _SAME_WIDTH * min(widths) and len(table.cells) > 1:
        return _bars(table, score_name, name)
    with Canvas(name, 1, height=3.9) as canvas:
        (panel,) = canvas.panels
        for number, scheme in enumerate(dict.fromkeys(cell.label for cell in table.cells)):
            _draw_scheme(panel, number, [cell for cell in table.cells if cell.label == scheme])
        panel.set_xscale("log")
        plain_numbers(panel.xaxis)
        panel.grid(visible=True, axis="x", which="both")
        panel.set_xlabel("columns that a client holds, |S_k| (log scale)")
        panel.set_title(score_name)
        as_percent(panel)
        canvas.legend_below(panel)
        return canvas.finish(
            f"Score against the columns that a client holds, as in Figure 5 of the paper.{_whiskers(table)}"
        )


def _bars(table: TableRecord, score_name: str, name: str) -> Chart:
    with Canvas(name, 1, height=1.2 + 0.34 * len(table.cells)) as canvas:
        (panel,) = canvas.panels
        for place, cell in enumerate(table.cells):
            spread = cell.deviation if cell.num_seeds > 1 else None
            panel.barh(place, cell.mean, 0.7, xerr=spread, color=colour_of(0), ecolor=INK, capsize=3)
        labels = [
            f"{cell.label} {'' if cell.num_negatives is None else cell.num_negatives}" for cell in table.cells
        ]
        place_bars(panel, [label.strip() for label in labels])
        panel.grid(visible=True, axis="x")
        panel.xaxis.set_major_formatter(PercentFormatter(1))
        panel.set_title(score_name)
        return canvas.finish(f"The score of every row.{_whiskers(table)}")


def _whiskers(table: TableRecord) -> str:
    seeds = max(cell.num_seeds for cell in table.cells)
    return f"  Whiskers: standard deviation over {seeds} seeds." if seeds > 1 else ""


def _draw_scheme(panel: Axes, number: int, cells: Sequence[TableCell]) -> None:
    """A line over the widths with whiskers; a level where there are no clients to hold columns."""
    colour, label = colour_of(number), cells[0].label
    if not any(cell.bytes_down_per_client for cell in cells):
        panel.axhline(cells[0].mean, color=colour, linestyle="--", linewidth=1.2, label=label)
        return
    cells = sorted(cells, key=lambda cell: cell.mean_width)
    widths, means = [cell.mean_width for cell in cells], [cell.mean for cell in cells]
    panel.plot(widths, means, color=colour, marker=marker_of(number), markersize=6.5, label=label)
    deviations = [cell.deviation for cell in cells]
    panel.errorbar(widths, means, yerr=deviations, fmt="none", ecolor=colour, elinewidth=1, capsize=3)


def metric_name(groups: Sequence[RunGroup]) -> str:
    names = dict.fromkeys(METRICS[group.first.experiment.evaluation.metric].title for group in groups)
    return " or ".join(names)


def _draw_mean(panel: Axes, number: int, group: RunGroup, points: Callable[[RunRecord], Series]) -> None:
    """The mean over the seeds, as far as all of them went, with the band from the lowest to the highest."""
    series = [points(run) for run in group.runs]
    length = min(len(x) for x, _ in series)
    if length == 0:
        return
    x = [statistics.fmean(own[0][i] for own in series) for i in range(length)]
    values = np.array([own[1][:length] for own in series])  # [seeds, points]
    colour = colour_of(number)
    marker = marker_of(number) if length <= MAX_MARKED_ROUNDS else None
    panel.plot(
        x, values.mean(axis=0), color=colour, marker=marker, linestyle=line_of(number), label=group.label
    )
    if len(series) > 1:
        panel.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.16, linewidth=0)


def _score_by_round(run: RunRecord) -> Series:
    scored = [(line.round + 1, line.score) for line in run.rounds if line.score is not None]
    return [float(done) for done, _ in scored], [score for _, score in scored]


def _by_round(run: RunRecord, figure: Callable[[RoundRecord], float]) -> Series:
    return [float(line.round + 1) for line in run.rounds], [figure(line) for line in run.rounds]


def _score_by_megabytes(run: RunRecord) -> Series:
    megabytes = np.cumsum([(line.bytes_down + line.bytes_up) / 1e6 for line in run.rounds]).tolist()
    if megabytes[-1] == 0:
        return [], []  # centralized: nothing travels
    scored = [
        (size, line.score) for size, line in zip(megabytes, run.rounds, strict=True) if line.score is not None
    ]
    return [size for size, _ in scored], [score for _, score in scored]


def _share(group: RunGroup) -> float | None:
    if group.first.num_classes is None:
        return None
    return group.mean(lambda line: line.mean_width) / group.first.num_classes


def _name_score(panel: Axes, groups: Sequence[RunGroup]) -> None:
    panel.set_title(metric_name(groups))
    panel.set_ylim(bottom=0)
    as_percent(panel)
    if not panel.lines:
        panel.annotate("not evaluated yet", (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT)


def _band_words(groups: Sequence[RunGroup]) -> str:
    if all(len(group.runs) == 1 for group in groups):
        return ""
    return "Lines are means over the seeds, bands reach from the lowest to the highest.  "


def _height_for_legend(groups: Sequence[RunGroup], height: float) -> float:
    return height + 0.2 * -(-len(groups) // 4)
