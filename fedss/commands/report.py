"""`fedss report`: one page, complete in itself, of any number of runs, tables and measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from fedss.api.reports import write_report
from fedss.console import Json, arguments_as_options, log, show_result


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, tables or measurements, or of many of them; results files of fedss bench; artifacts.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page; its figures go beside it as PNG.")] = Path(
        "report.html"
    ),
    paper: Annotated[
        bool, typer.Option("--paper", help="Set the rows of tables beside the papers' own.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Learning curves, communication, memory and time: one HTML file that needs nothing else, and PNGs.

    [bold]Examples[/]

      fedss report runs/glyphs-fedss
      fedss report runs/glyphs-table1 runs/bench --out reports/table1.html
      fedss report runs/fedss-table1-small --paper
    """
    with arguments_as_options():
        report = write_report(sources, out, paper)
    for note in report.notes:
        log.print(Text("note:", "yellow"), note)
    payload = {
        "report": str(report.path),
        "pictures": [str(picture) for picture in report.pictures],
        "runs": report.num_runs,
        "tables": report.num_tables,
        "rows": report.num_rows,
        "notes": list(report.notes),
    }
    show_result(as_json, payload, Group(f"{out}: {report.subtitle}"))
