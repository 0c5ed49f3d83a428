"""`fedss analyse communication`: what FedSS saves per client and round, beside section 4.3 of the FedSS paper.

The paper gives shares, and no count of its extractor.  They fit |φ| = 3.69 million, whatever d is; but for the 3.38 % of
Landmarks at d = 64, where that count gives 3.1 %.  MobileNetV3-Large here has 3.03 million at d = 64 and 4.20 million at
d = 1,280, since its last layer grows with d: the head is a larger part of the former, and a smaller one of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.head_share import Architecture
from fedss.analyses.parameter_counts import extractor_parameters, head_share
from fedss.console import Json
from fedss.reporting.chart_style import Canvas, Chart, colour_of, place_bars

NAME = "communication"


@dataclass(frozen=True)
class _Setting:
    """What section 4.3 says of one data set."""

    data: str
    num_classes: int
    held: int
    """|S_k|"""
    embedding_dim: int
    paper_share: float | None
    """Of the head in the whole model."""
    paper_saving: float
    """Of the parameters that are sent per client and round."""


_SETTINGS = (
    _Setting("SOP", 11_318, 100, 64, 0.16, 0.16),
    _Setting("Landmarks-User-160k", 2_028, 170, 64, 0.034, 0.0338),
    _Setting("SOP", 11_318, 100, 1_280, None, 0.79),
    _Setting("Landmarks-User-160k", 2_028, 170, 1_280, None, 0.38),
)


def command(
    architecture: Architecture = "mobilenet_v3_large", out: Out = None, as_json: Json = False
) -> None:
    """The head's share and FedSS's saving in the paper's two settings, for our networks and as the paper has them.

    [bold]Example[/]

      fedss analyse communication
    """
    publish(saved_by_sampling(architecture), NAME, out, as_json)


def saved_by_sampling(architecture: str) -> Finding:
    rows: list[Row] = []
    for setting in _SETTINGS:
        extractor = extractor_parameters(architecture, setting.embedding_dim)
        share = head_share(extractor, setting.embedding_dim, setting.num_classes)
        rows.append(
            {
                "data": setting.data,
                "embedding_dim": setting.embedding_dim,
                "num_classes": setting.num_classes,
                "held": setting.held,
                "extractor_parameters": extractor,
                "share": share,
                "saving": share * (1 - setting.held / setting.num_classes),
                "paper_share": setting.paper_share,
                "paper_saving": setting.paper_saving,
            }
        )
    return Finding(
        title=f"What FedSS saves per client and round, {architecture}",
        headers=["data, d", "n", "|S_k|", "extractor", "head %", "paper", "saved %", "paper"],
        cells=[
            [
                f"{row['data']}, {row['embedding_dim']}",
                f"{row['num_classes']:,}",
                str(row["held"]),
                f"{row['extractor_parameters']:,}",
                f"{100 * row['share']:.1f}",
                "" if row["paper_share"] is None else f"{100 * row['paper_share']:.1f}",
                f"{100 * row['saving']:.1f}",
                f"{100 * row['paper_saving']:.1f}",
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(rows)],
        words="Head: per cent of all parameters that are in the classification layer.  Saved: per cent of the parameters "
        "that a client neither gets nor trains with |S_k| of n columns.  The paper's shares fit an extractor of 3.69 "
        "million parameters at both sizes; the last layer of ours grows with d: smaller at d = 64, larger at 1,280.",
    )


def _chart(rows: Sequence[Row]) -> Chart:
    with Canvas(NAME, 1, height=3.2) as canvas:
        (panel,) = canvas.panels
        for number, (key, label) in enumerate((("saving", "this network"), ("paper_saving", "the paper"))):
            places = [place + (number - 0.5) * 0.38 for place in range(len(rows))]
            values = [100 * row[key] for row in rows]
            bars = panel.barh(places, values, 0.36, color=colour_of(number), label=label)
            panel.bar_label(bars, fmt="%.1f", padding=3)
        panel.set_xlim(0, 100)
        panel.set_title("per cent of the model that a client does not get")
        place_bars(panel, [f"{row['data']}, d = {row['embedding_dim']:,}" for row in rows])
        canvas.legend_below(panel)
        return canvas.finish("What FedSS saves per client and round, of all parameters of the model.")
