"""The parts of a report that are about profiles: where the time of a step goes, by layer and operator."""

from __future__ import annotations

from android_harness.measuring.step_profile import ProfileRow, StepProfile, shortened
from fedss.reporting.chart_style import Canvas, Chart, colour_of, place_bars
from fedss.reporting.page import Section

CHART_DEPTH = 2
"""Parts of a module's path that make a bar: blocks.3."""
TABLE_DEPTH = 3
_OPERATORS = 7
"""Colours of their own; the others share one."""
OTHERS = "others"


def profile_section(profile: StepProfile, number: int) -> Section:
    """`number` keeps the names of its pictures apart from another's."""
    section = Section(f"Where the step goes: {profile.runtime} on {profile.device}")
    if profile.unit == "nanoseconds":
        section.words(
            f"{profile.total / 1e6:,.1f} ms of processor time per step; the processor's peak, measured in the same run, "
            f"is {profile.peak:,.1f} multiply-adds per nanosecond of one thread."
        )
    else:
        section.words(
            f"{profile.total / 1e6:,.0f} million instructions per step; ideal would be four multiply-adds in each."
        )
    section.chart(_layers_chart(profile, f"profile-{number}"))
    headers = ["operator", "calls", _unit(profile), "share", "million multiply-adds", _reached(profile)]
    section.table(headers, [[row.operator, *_cells(profile, row)] for row in profile.by_operator()])
    headers[0] = "layer"
    rows = [[row.layer, *_cells(profile, row)] for row in profile.by_layer(TABLE_DEPTH)]
    section.table(headers, rows, folded="All layers")
    return section


def _layers_chart(profile: StepProfile, name: str) -> Chart:
    """Bars in the network's order, coloured by operator."""
    largest = [row.operator for row in profile.by_operator()[:_OPERATORS]]
    layers = list(
        dict.fromkeys(shortened(row.layer, CHART_DEPTH) for row in profile.rows if not row.backward)
    )
    layers += [
        layer
        for layer in dict.fromkeys(shortened(row.layer, CHART_DEPTH) for row in profile.rows)
        if layer not in layers
    ]
    with Canvas(name, 1, height=1.6 + 0.24 * len(layers)) as canvas:
        (panel,) = canvas.panels
        starts = [0.0] * len(layers)
        for place, operator in enumerate([*largest, OTHERS]):
            costs = dict.fromkeys(layers, 0.0)
            for row in profile.rows:
                if row.operator == operator or (operator == OTHERS and row.operator not in largest):
                    costs[shortened(row.layer, CHART_DEPTH)] += 100 * profile.share(row.cost)
            shown = operator.removeprefix("fedss::").removesuffix(".out")
            panel.barh(
                range(len(layers)),
                list(costs.values()),
                0.7,
                left=starts,
                color=colour_of(place),
                label=shown,
            )
            starts = [start + cost for start, cost in zip(starts, costs.values(), strict=True)]
        panel.set_xlabel("share of the step, %")
        place_bars(panel, layers)
        canvas.legend_below(panel)
        return canvas.finish(
            f"One step of batch {profile.batch} at {profile.image_size} px over {profile.width} classes, forward and "
            f"backward pass together; {profile.share(profile.outside):.1%} of it is outside operators."
        )


def _cells(profile: StepProfile, row: ProfileRow) -> list[str]:
    of_peak = profile.of_peak(row)
    return [
        str(row.calls),
        f"{row.cost / 1e6:,.2f}",
        f"{profile.share(row.cost):.1%}",
        f"{row.multiply_adds / 1e6:,.1f}" if row.multiply_adds else "",
        "" if of_peak is None else f"{of_peak:.0%}",
    ]


def _unit(profile: StepProfile) -> str:
    return "CPU ms" if profile.unit == "nanoseconds" else "million instructions"


def _reached(profile: StepProfile) -> str:
    return "of peak" if profile.unit == "nanoseconds" else "of ideal"
