"""How figures look, on paper and on the page: colours that everybody can tell apart, light and dark.

A figure is drawn once.  As PNG it stands on white.  Inside the page it is SVG whose colours are variables of the page's
style sheet, so that it follows the reader's light or dark setting, and whose words are text in the page's own font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

INK, FAINT, GRID = "#1f2328", "#656d76", "#d8dee4"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#56b4e9", "#882255", "#5c6b73")
"""Okabe and Ito's, and Tol's where theirs is too pale for white; in the order in which lines are drawn."""
DARK_SERIES = ("#4da6e0", "#f0883e", "#2dc79b", "#d67fc4", "#e3b341", "#9bd3f5", "#e0709b", "#a3b1ba")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")

_VARIABLES = {INK: "ink", FAINT: "faint", GRID: "grid"} | {
    colour: f"series-{number}" for number, colour in enumerate(SERIES)
}
_RULES: dict[Any, Any] = {  # Any: matplotlib's own type lists every key it knows
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.06,
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Chart:
    """A drawn figure with what the page says about it."""

    name: str
    caption: str
    svg: str
    png: bytes

    def write_png(self, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.partial")
        temporary.write_bytes(self.png)
        temporary.replace(path)


class Canvas:
    """A row of panels to draw on, in this style inside `with`; leaves a `Chart`."""

    def __init__(self, name: str, num_panels: int, height: float = 3.4) -> None:
        self._name = name
        self._size = (9.6 if num_panels > 1 else 6.4, height)
        self._num_panels = num_panels
        self._style = ExitStack()

    def __enter__(self) -> Self:
        self._style.enter_context(rc_context(_RULES | {"svg.hashsalt": self._name}))
        self.figure = Figure(figsize=self._size, layout="constrained")
        self.panels: list[Axes] = list(self.figure.subplots(1, self._num_panels, squeeze=False)[0])
        return self

    def __exit__(self, *exception: object) -> None:
        self._style.close()

    def legend_below(self, panel: Axes) -> None:
        """One legend for the whole row, outside the panels: it covers no data."""
        handles, labels = panel.get_legend_handles_labels()
        if len(labels) > 1:
            most = max(1, int(self._size[0] * 11 / (max(map(len, labels)) + 7)))  # some 11 letters per inch
            rows = -(-len(labels) // most)
            columns = -(-len(labels) // rows)
            self.figure.set_figheight(
                self._size[1] + 0.22 * max(0, rows - 3)
            )  # a long one does not squeeze the panels
            self.figure.legend(handles, labels, loc="outside lower center", ncols=columns)

    def finish(self, caption: str) -> Chart:
        png, svg = io.BytesIO(), io.StringIO()
        self.figure.savefig(png, format="png", dpi=160, facecolor="white")
        self.figure.set_layout_engine("none")  # everything is in its place by now
        self.figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return Chart(self._name, caption, _themed(svg.getvalue(), caption), png.getvalue())


def colour_of(number: int) -> str:
    return SERIES[number % len(SERIES)]


def marker_of(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


def line_of(number: int) -> str:
    """After eight lines the colours come again, dashed."""
    return "-" if number < len(SERIES) else "--"


def as_percent(panel: Axes) -> None:
    """The y axis in per cent, with as many decimals as its marks have."""
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def plain_numbers(axis: Axis) -> None:
    """A log axis labelled 20, 50, 100 and not in powers."""
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def place_bars(panel: Axes, names: Sequence[str]) -> None:
    """Horizontal bars, the first on top, their names at the axis."""
    panel.set_yticks(range(len(names)), names)
    panel.tick_params(axis="y", length=0, labelcolor=INK)
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)


def _themed(svg: str, caption: str) -> str:
    """Colours become variables, the font the page's; nothing is left that a page may not hold twice."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z0-9]+_\d+"', "", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = svg.replace("'DejaVu Sans'", "var(--font)")
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*" ', r"<svg \1", svg)
    svg = re.sub(r'(<svg [^>]*?)width="([\d.]+)pt"', r'\1style="width: \2pt"', svg)
    alternative = re.sub(r"[<>&\"]", " ", re.sub(r"<[^>]+>", "", caption))
    return svg.replace("<svg ", f'<svg role="img" aria-label="{alternative}" ', 1)
