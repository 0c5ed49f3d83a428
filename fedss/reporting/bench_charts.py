"""The figures of measurements: memory and time of a step against its sizes, and against the classes that there are.

One figure per device.  On an emulated device time is counted in instructions; its clock says nothing about a phone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from android_harness.measuring.records import DeviceRows, MeasurementRow, by_device, read_measurements
from fedss.reporting.chart_style import Canvas, Chart, colour_of, marker_of, place_bars, plain_numbers

AXES = {
    "width": "sampled classes |S_k|",
    "batch": "batch",
    "micro_batch": "micro-batch",
    "image_size": "image size, px",
    "threads": "threads",
}
"""What a step's cost may depend on, as the rows name it and as people do."""
EMBEDDING_DIMS = (64, 1280)
"""This project's embedding, and MobileNetV3's own (Figure 9 of the paper)."""
NUM_CLASSES = np.logspace(3, 6, 31)
Figure = Callable[[MeasurementRow], float | None]
_MEMORY: tuple[Figure, str] = (lambda row: row.peak_mb, "peak memory, MB")


def write_charts(results: Path) -> list[Path]:
    """Pictures of everything that a results file holds, as PNG beside it."""
    pictures = []
    for number, measured in enumerate(by_device(read_measurements(results)), start=1):
        for chart in device_charts(measured, f"bench-{number}"):
            pictures.append(results.parent / f"{chart.name}.png")
            chart.write_png(pictures[-1])
    return pictures


def device_charts(measured: DeviceRows, name: str) -> list[Chart]:
    """A figure for every size that was varied; bars where none was."""
    varied = [axis for axis in AXES if len(_best_slice(measured.rows, axis)) > 1]
    if not varied:
        return [_bars_chart(measured, name)]
    return [_lines_chart(measured, axis, f"{name}-{axis.replace('_', '-')}") for axis in varied]


def head_chart(measured: DeviceRows, name: str) -> Chart | None:
    """What a full softmax would add to the smallest client that was measured, as the number of classes grows."""
    rows = [row for row in measured.rows if row.peak_mb is not None]
    if not rows:
        return None
    row = min(rows, key=lambda each: each.peak_mb or 0)
    peak = row.peak_mb or 0.0
    with Canvas(name, 1, height=3.8) as canvas:
        (panel,) = canvas.panels
        for number, dim in enumerate(EMBEDDING_DIMS, start=1):
            extra = (
                8 * dim * np.maximum(NUM_CLASSES - row.width, 0) / 1e6
            )  # weights and gradients, 4 bytes each
            panel.plot(
                NUM_CLASSES,
                peak + extra,
                color=colour_of(number),
                linestyle="--",
                label=f"full softmax, d = {dim} (computed)",
            )
        panel.axhline(
            peak,
            color=colour_of(0),
            linewidth=2.4,
            label=f"{row.width} sampled classes (measured)",
        )
        panel.set_xscale("log")
        panel.set_yscale("log")
        for axis in (panel.xaxis, panel.yaxis):
            plain_numbers(axis)
        panel.grid(which="minor", visible=False)
        panel.set_xlabel("classes n (log scale)")
        panel.set_title("peak memory of the client, MB (log scale)")
        canvas.legend_below(panel)
        return canvas.finish(
            f"Memory against the number of classes, from the row of {row.runtime} at micro-batch {row.micro_batch} and "
            f"{row.image_size} px.  Dashed: the same client plus weights and gradients of the columns that sampling spares."
        )


def _lines_chart(measured: DeviceRows, axis: str, name: str) -> Chart:
    rows = _best_slice(measured.rows, axis)
    chosen = _comparable([row for own in rows.values() for row in own], axis)
    figures = _measured_figures(measured, chosen)
    with Canvas(name, len(figures), height=3.6) as canvas:
        for panel, (figure, title) in zip(canvas.panels, figures, strict=True):
            for number, (label, series) in enumerate(_series(chosen).items()):
                points = [(getattr(row, axis), value) for row in series if (value := figure(row)) is not None]
                panel.plot(
                    [place for place, _ in sorted(points)],
                    [value for _, value in sorted(points)],
                    color=colour_of(number),
                    marker=marker_of(number),
                    label=label,
                )
            panel.set_title(title)
            panel.set_xticks(sorted(rows))
            panel.set_xlabel(AXES[axis])
            panel.set_ylim(bottom=0)
        canvas.legend_below(canvas.panels[0])
        row = next((row for row in chosen if not _is_eager(row)), chosen[0])
        alone = len(_series(chosen)) == 1  # it has no legend then
        subject = f"{row.runtime} against" if alone else "Against"
        return canvas.finish(f"{subject} {AXES[axis]}, at {_sizes(row, without=[axis])}.")


def _bars_chart(measured: DeviceRows, name: str) -> Chart:
    rows = measured.rows
    figures = _measured_figures(measured, rows)
    with Canvas(name, len(figures), height=1.3 + 0.5 * len(rows)) as canvas:
        for panel, (figure, title) in zip(canvas.panels, figures, strict=True):
            values = [figure(row) for row in rows]
            runtimes = list(dict.fromkeys(row.runtime for row in rows))
            colours = [colour_of(runtimes.index(row.runtime)) for row in rows]
            panel.barh(range(len(rows)), [value or 0 for value in values], height=0.5, color=colours)
            for place, value in enumerate(values):
                words = (
                    "not measured" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
                )
                panel.annotate(
                    words, (value or 0, place), xytext=(4, 0), textcoords="offset points", va="center"
                )
            panel.set_title(title)
            panel.margins(x=0.16)
            place_bars(panel, [""] * len(rows))
        canvas.panels[0].set_yticklabels(_bar_names(rows))
        shared = _sizes(rows[-1], without=_varied_sizes(rows))
        return canvas.finish(f"One step, at {shared}.")


def _bar_names(rows: Sequence[MeasurementRow]) -> list[str]:
    """The runtime, and on a second line whatever sets its row apart."""
    varied = _varied_sizes(rows)
    names = [", ".join(_size_words(row)[axis] for axis in varied) for row in rows]
    names = [f"{row.runtime}\n{name}".strip() for row, name in zip(rows, names, strict=True)]
    if len(set(names)) == len(names):
        return names
    return [f"{name}\nartifact {row.artifact_sha256[:6]}" for name, row in zip(names, rows, strict=True)]


def _varied_sizes(rows: Sequence[MeasurementRow]) -> list[str]:
    """Eager's micro-batch is its batch: not a size of its own."""
    varied = []
    for axis in AXES:
        looked_at = [row for row in rows if not (axis == "micro_batch" and _is_eager(row))]
        if len({getattr(row, axis) for row in looked_at}) > 1:
            varied.append(axis)
    return varied


def _sizes(row: MeasurementRow, without: Sequence[str]) -> str:
    return ", ".join(words for axis, words in _size_words(row).items() if axis not in without)


def _size_words(row: MeasurementRow) -> dict[str, str]:
    return {
        "batch": f"batch {row.batch}",
        "micro_batch": f"micro-batch {row.micro_batch}",
        "image_size": f"{row.image_size} px",
        "width": f"{row.width} classes",
        "threads": f"{row.threads} thread{'s' if row.threads > 1 else ''}",
    }


def _cost(measured: DeviceRows) -> tuple[Figure, str]:
    if measured.emulated:
        return _million_instructions, "million instructions per step"
    return (lambda row: row.cpu_ms_p50), "CPU ms per step, median"


def _measured_figures(measured: DeviceRows, rows: Sequence[MeasurementRow]) -> list[tuple[Figure, str]]:
    """Memory and time, where some row has them."""
    cost = _cost(measured)
    return [each for each in (_MEMORY, cost) if any(each[0](row) is not None for row in rows)] or [cost]


def _million_instructions(row: MeasurementRow) -> float | None:
    return None if row.instructions_per_step is None else row.instructions_per_step / 1e6


def _best_slice(rows: Sequence[MeasurementRow], axis: str) -> dict[int, list[MeasurementRow]]:
    """Value of `axis` -> rows, where all other sizes are the same: the choice of those with the most values.

    Eager torch takes the whole batch at once, whatever the artifact's micro-batch is: that size of its rows is not looked
    at, and along the micro-batch it is left out.
    """
    others = [other for other in AXES if other != axis and (axis, other) != ("batch", "micro_batch")]
    if axis == "micro_batch":
        rows = [row for row in rows if not _is_eager(row)]

    def fixed(row: MeasurementRow) -> tuple[int | None, ...]:
        return tuple(
            None if other == "micro_batch" and _is_eager(row) else getattr(row, other) for other in others
        )

    leading = [row for row in rows if not _is_eager(row)] or rows
    distinct = {(fixed(row), getattr(row, axis)) for row in leading}
    counted = Counter(sizes for sizes, _ in distinct)
    best = max(counted, key=lambda sizes: counted[sizes], default=())
    values: dict[int, list[MeasurementRow]] = {}
    for row in rows:
        if all(own in (None, chosen) for own, chosen in zip(fixed(row), best, strict=True)):
            values.setdefault(getattr(row, axis), []).append(row)
    return values


def _is_eager(row: MeasurementRow) -> bool:
    return row.runtime.startswith("eager")


def _comparable(rows: Sequence[MeasurementRow], axis: str) -> list[MeasurementRow]:
    """Without those that were measured at one place along the axis and no other, if there are any that were."""
    lines = [own for own in _series(rows).values() if len({getattr(row, axis) for row in own}) > 1]
    return [row for own in lines for row in own] or list(rows)


def _series(rows: Sequence[MeasurementRow]) -> dict[str, list[MeasurementRow]]:
    """One line per runtime; one per runtime and artifact where several artifacts were measured at the same sizes."""
    places = [(row.runtime, *(getattr(row, axis) for axis in AXES)) for row in rows]
    several = len(set(places)) < len(places)
    series: dict[str, list[MeasurementRow]] = {}
    for row in rows:
        name = f"{row.runtime}, artifact {row.artifact_sha256[:6]}" if several else row.runtime
        series.setdefault(name, []).append(row)
    return series
