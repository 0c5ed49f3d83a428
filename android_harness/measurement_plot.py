"""Measurements as a picture: time and memory of every contender, those of one size together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from android_harness.measurement import Measurement

GROUP_WIDTH = 0.8


def plot_measurements(rows: Sequence[Measurement], path: Path) -> None:
    """A PNG with two panels: what a step costs, and the peak of the process; a bar of nothing was not measured.

    The cost is CPU time, with its p90 as a whisker; instructions where no row has a time, on emulated devices.
    """
    figure = Figure(figsize=(max(7.0, 2.0 * len(_sizes(rows)) + 4), 6), layout="constrained")
    figure.suptitle(f"One training step, {rows[0].image_size} px")
    cost_axes, memory_axes = figure.subplots(2, 1, sharex=True)
    if all(row.cpu_ms_p50 is None for row in rows):
        millions = [(row.instructions_per_step or 0.0) / 1e6 for row in rows]
        _bars(cost_axes, rows, millions, "million instructions per step")
    else:
        medians = [row.cpu_ms_p50 or 0.0 for row in rows]
        spread = [max((row.cpu_ms_p90 or 0.0) - median, 0) for row, median in zip(rows, medians, strict=True)]
        _bars(cost_axes, rows, medians, "CPU ms per step")
        places = [place for place, _ in _places(rows)]
        cost_axes.errorbar(places, medians, yerr=[[0] * len(rows), spread], fmt="none", ecolor="black")
    _bars(memory_axes, rows, [row.peak_mb or 0.0 for row in rows], "peak of the process, MB")
    labels = [
        f"batch {batch}\n{width} classes\n{threads} thread(s)" for batch, width, threads in _sizes(rows)
    ]
    memory_axes.set_xticks(range(len(labels)), labels)
    cost_axes.legend(frameon=False)
    temporary = path.with_name(f"{path.stem}.partial.png")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)


def _bars(axes: Axes, rows: Sequence[Measurement], heights: Sequence[float], label: str) -> None:
    for contender in _contenders(rows):
        own = [index for index, row in enumerate(rows) if _contender(row, rows) == contender]
        places = [_places(rows)[index] for index in own]
        axes.bar(
            [place for place, _ in places],
            [heights[index] for index in own],
            width=places[0][1],
            label=contender,
        )
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def _places(rows: Sequence[Measurement]) -> list[tuple[float, float]]:
    """Where each row's bar stands, and how wide it is: one group a size, one place in it a contender."""
    contenders = _contenders(rows)
    width = GROUP_WIDTH / len(contenders)
    sizes = _sizes(rows)
    return [
        (
            sizes.index((row.batch, row.width, row.threads))
            + (contenders.index(_contender(row, rows)) + 0.5) * width
            - GROUP_WIDTH / 2,
            width,
        )
        for row in rows
    ]


def _sizes(rows: Sequence[Measurement]) -> list[tuple[int, int, int]]:
    return list(dict.fromkeys((row.batch, row.width, row.threads) for row in rows))


def _contenders(rows: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(_contender(row, rows) for row in rows))


def _contender(row: Measurement, rows: Sequence[Measurement]) -> str:
    """The runtime, and the micro-batch where the same runtime has several at one batch."""
    several = {
        other.micro_batch for other in rows if (other.runtime, other.batch) == (row.runtime, row.batch)
    }
    return row.runtime if len(several) == 1 else f"{row.runtime}, micro-batch {row.micro_batch}"
