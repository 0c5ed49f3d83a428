"""`fedss analyse head-share`: the classification layer's share of a model, as in Figure 9 of the FedSS paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.analyses.parameter_counts import extractor_parameters, head_share
from fedss.comma_lists import numbers
from fedss.console import Json
from fedss.reporting.chart_style import Canvas, Chart, as_percent, colour_of, marker_of, plain_numbers

NAME = "head-share"

Architecture = Annotated[str, typer.Option(help="As for fedss export.")]


def command(
    architecture: Architecture = "mobilenet_v3_large",
    dims: Annotated[str, typer.Option(help="Embedding sizes d.")] = "64,128,256,512,1280",
    classes: Annotated[
        str, typer.Option(help="Numbers of classes n.")
    ] = "1000,2028,5000,11318,21000,50000,100000",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Per cent of a model's parameters that are in its classification layer, by classes and embedding size.

    [bold]Examples[/]

      fedss analyse head-share
      fedss analyse head-share --architecture mobilenet_v3_small --dims 64,1024
    """
    finding = share_of_the_head(architecture, numbers("--dims", dims), numbers("--classes", classes))
    publish(finding, NAME, out, as_json)


def share_of_the_head(architecture: str, dims: Sequence[int], classes: Sequence[int]) -> Finding:
    extractors = {dim: extractor_parameters(architecture, dim) for dim in dims}
    rows: list[Row] = [
        {
            "architecture": architecture,
            "embedding_dim": dim,
            "num_classes": count,
            "extractor_parameters": extractors[dim],
            "head_parameters": dim * count,
            "share": head_share(extractors[dim], dim, count),
        }
        for dim in dims
        for count in classes
    ]
    shares = {(row["embedding_dim"], row["num_classes"]): row["share"] for row in rows}
    return Finding(
        title=f"The head's share of {architecture}",
        headers=["d", "extractor", *(f"n = {count:,}" for count in classes)],
        cells=[
            [str(dim), f"{extractors[dim]:,}", *(f"{100 * shares[dim, count]:.1f}" for count in classes)]
            for dim in dims
        ],
        rows=rows,
        charts=[_chart(architecture, dims, classes, shares)],
        words="Per cent of all parameters that are in the classification layer: d n of |φ| + d n.",
    )


def _chart(
    architecture: str, dims: Sequence[int], classes: Sequence[int], shares: dict[tuple[int, int], float]
) -> Chart:
    with Canvas(NAME, 1, height=3.8) as canvas:
        (panel,) = canvas.panels
        for number, dim in enumerate(dims):
            line = [shares[dim, count] for count in classes]
            panel.plot(classes, line, color=colour_of(number), marker=marker_of(number), label=f"d = {dim}")
        panel.set_xscale("log")
        plain_numbers(panel.xaxis)
        panel.set_xlabel("classes n (log scale)")
        panel.set_title(f"share of the classification layer, {architecture}")
        panel.set_ylim(0, 1)
        as_percent(panel)
        canvas.legend_below(panel)
        return canvas.finish("The classification layer dominates a model as its classes grow.")
