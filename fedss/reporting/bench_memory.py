"""The parts of a report that are about an artifact: what its step holds in memory while it runs."""

from __future__ import annotations

from collections import Counter

from export.cost.timeline import MemoryTimeline
from fedss.reporting.chart_style import FAINT, Canvas, Chart, colour_of
from fedss.reporting.page import Section
from ondevice.contract.artifact import MEGABYTE

_LARGEST = 15


def memory_section(artifact: str, timeline: MemoryTimeline, number: int) -> Section:
    """`number` keeps the name of its picture apart from another's."""
    section = Section(f"Memory of the step: {artifact}")
    call = timeline.calls[timeline.peak_call]
    section.words(
        f"{timeline.total / MEGABYTE:.1f} MB for the step: weights {timeline.weights / MEGABYTE:.1f}, gradients "
        f"{timeline.gradients / MEGABYTE:.1f}, examples {timeline.examples / MEGABYTE:.1f}, arena "
        f"{timeline.arena / MEGABYTE:.1f}, of which {timeline.planned_peak / MEGABYTE:.1f} are alive at the peak, "
        f"{call.operator} of {call.layer}. A process holds its runtime and the kernels' scratch beside it."
    )
    section.chart(_chart(timeline, f"memory-{number}"))
    by_layer: Counter[tuple[str, str]] = Counter()
    for each in timeline.at_peak:
        by_layer[each.layer, each.operator] += each.num_bytes
    rows = [
        [layer, operator, f"{num_bytes / MEGABYTE:.2f}"]
        for (layer, operator), num_bytes in by_layer.most_common(_LARGEST)
    ]
    section.table(
        ["alive at the peak: layer", "written by", "MB"], rows, num_words=2, folded="What makes the peak"
    )
    return section


def _chart(timeline: MemoryTimeline, name: str) -> Chart:
    constant = {
        kind: [getattr(timeline, kind)] * len(timeline.calls) for kind in ("weights", "gradients", "examples")
    }
    kinds = {**constant, "activations": timeline.activations, "temporaries": timeline.temporaries}
    with Canvas(name, 1, height=3.8) as canvas:
        (panel,) = canvas.panels
        panel.stackplot(
            range(len(timeline.calls)),
            [[num_bytes / MEGABYTE for num_bytes in series] for series in kinds.values()],
            labels=list(kinds),
            colors=[colour_of(place) for place in range(len(kinds))],
        )
        backward = next((at for at, call in enumerate(timeline.calls) if call.backward), None)
        if backward is not None:
            panel.axvline(backward, color=FAINT, linewidth=1, linestyle=":")
        panel.set_xlabel("operator of the step; the backward pass begins at the dotted line")
        panel.set_ylabel("MB")
        panel.margins(x=0)
        canvas.legend_below(panel)
        return canvas.finish(
            "What is alive when, at the most examples and classes that the step takes; activations are kept for the "
            "backward pass, temporaries are of one pass alone."
        )
