"""The figures of measurements: memory and time of a step against its sizes, and against the classes that there are.

One device a figure.  On an emulated device time is counted in instructions; its clock says nothing about a phone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from android_harness.measurement_records import DeviceRows, MeasurementRow
from fedss.chart_style import FAINT, Canvas, Chart, colour_of, marker_of, place_bars

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
                label=f"with a full-softmax head, d = {dim} (computed)",
            )
        panel.axhline(
            peak,
            color=colour_of(0),
            linewidth=2.4,
            label=f"{row.runtime}, {row.width} sampled classes (measured)",
        )
        panel.set_xscale("log")
        panel.set_yscale("log")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
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
    chosen = [row for own in rows.values() for row in own]
    with Canvas(name, 2, height=3.6) as canvas:
        memory, cost = canvas.panels
        for panel, figure, title in ((memory, _peak, "peak memory, MB"), (cost, *_cost(measured))):
            for number, (label, series) in enumerate(_series(chosen).items()):
                points = [(getattr(row, axis), value) for row in series if (value := figure(row)) is not None]
                panel.plot(
                    [place for place, _ in sorted(points)],
                    [value for _, value in sorted(points)],
                    color=colour_of(number),
                    marker=marker_of(number),
                    label=label,
                )
            _finish_panel(panel, title)
            panel.set_xticks(sorted(rows))
            panel.set_xlabel(AXES[axis])
        canvas.legend_below(memory)
        fixed = ", ".join(
            f"{words} {getattr(chosen[0], other)}" for other, words in AXES.items() if other != axis
        )
        if axis == "batch":
            fixed = ", ".join(part for part in fixed.split(", ") if not part.startswith("micro-batch"))
        return canvas.finish(f"Against {AXES[axis]}, at {fixed}.")


def _bars_chart(measured: DeviceRows, name: str) -> Chart:
    rows = measured.rows
    with Canvas(name, 2, height=1.3 + 0.4 * len(rows)) as canvas:
        labels = list(_series(rows))
        for panel, figure, title in zip(
            canvas.panels, *zip((_peak, "peak memory, MB"), _cost(measured), strict=True), strict=True
        ):
            values = [figure(row) or 0 for row in rows]
            panel.barh(range(len(rows)), values, height=0.5, color=[colour_of(i) for i in range(len(rows))])
            for place, value in enumerate(values):
                panel.annotate(
                    f"{value:,.0f}" if value >= 10 else f"{value:.2g}",
                    (value, place),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                )
            _finish_panel(panel, title)
            panel.margins(x=0.16)
            place_bars(panel, labels if panel is canvas.panels[0] else [""] * len(rows))
        sizes = ", ".join(f"{words} {getattr(rows[0], axis)}" for axis, words in AXES.items())
        return canvas.finish(f"One step at {sizes}.")


def _finish_panel(panel: Axes, title: str) -> None:
    panel.set_title(title)
    if not any(len(line.get_xydata()) for line in panel.lines) and not panel.patches:  # type: ignore[arg-type]
        panel.annotate("not measured", (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT)
    panel.set_ylim(bottom=0)


def _cost(measured: DeviceRows) -> tuple[Figure, str]:
    if measured.emulated:
        return _million_instructions, "million instructions a step"
    return (lambda row: row.cpu_ms_p50), "CPU time of a step, ms (median)"


def _peak(row: MeasurementRow) -> float | None:
    return row.peak_mb


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


def _series(rows: Sequence[MeasurementRow]) -> dict[str, list[MeasurementRow]]:
    """One line a runtime; one a runtime and artifact where several artifacts were measured at the same sizes."""
    places = [(row.runtime, *(getattr(row, axis) for axis in AXES)) for row in rows]
    several = len(set(places)) < len(places)
    series: dict[str, list[MeasurementRow]] = {}
    for row in rows:
        name = f"{row.runtime}, artifact {row.artifact_sha256[:6]}" if several else row.runtime
        series.setdefault(name, []).append(row)
    return series
