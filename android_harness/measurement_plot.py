"""Measurements as a picture: time and memory of every contender, those of one size together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from android_harness.measurement import Measurement

GROUP_WIDTH = 0.8


def plot_measurements(rows: Sequence[Measurement], path: Path) -> None:
    """A PNG with two panels: CPU time, with its p90 as a whisker, and the peak of the process."""
    figure = Figure(figsize=(max(7.0, 2.0 * len(_sizes(rows)) + 4), 6), layout="constrained")
    figure.suptitle(f"One training step, {rows[0].image_size} px")
    time_axes, memory_axes = figure.subplots(2, 1, sharex=True)
    spread = [max(row.cpu_ms_p90 - row.cpu_ms_p50, 0) for row in rows]
    _bars(time_axes, rows, [row.cpu_ms_p50 for row in rows], "CPU ms per step")
    places = [place for place, _ in _places(rows)]
    time_axes.errorbar(
        places, [row.cpu_ms_p50 for row in rows], yerr=[[0] * len(rows), spread], fmt="none", ecolor="black"
    )
    _bars(memory_axes, rows, [row.peak_mb for row in rows], "peak of the process, MB")
    labels = [
        f"batch {batch}\n{width} classes\n{threads} thread(s)" for batch, width, threads in _sizes(rows)
    ]
    memory_axes.set_xticks(range(len(labels)), labels)
    time_axes.legend(frameon=False)
    temporary = path.with_name(f"{path.stem}.partial.png")
    figure.savefig(temporary, dpi=120)
    temporary.replace(path)


def _bars(axes: Axes, rows: Sequence[Measurement], heights: Sequence[float], label: str) -> None:
    for runtime in dict.fromkeys(row.runtime for row in rows):
        own = [index for index, row in enumerate(rows) if row.runtime == runtime]
        places = [_places(rows)[index] for index in own]
        axes.bar(
            [place for place, _ in places],
            [heights[index] for index in own],
            width=places[0][1],
            label=runtime,
        )
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def _places(rows: Sequence[Measurement]) -> list[tuple[float, float]]:
    """Where each row's bar stands, and how wide it is: one group a size, one place in it a runtime."""
    runtimes = list(dict.fromkeys(row.runtime for row in rows))
    width = GROUP_WIDTH / len(runtimes)
    sizes = _sizes(rows)
    return [
        (
            sizes.index((row.batch, row.width, row.threads))
            + (runtimes.index(row.runtime) + 0.5) * width
            - GROUP_WIDTH / 2,
            width,
        )
        for row in rows
    ]


def _sizes(rows: Sequence[Measurement]) -> list[tuple[int, int, int]]:
    return list(dict.fromkeys((row.batch, row.width, row.threads) for row in rows))
