"""What an analysis leaves: a table, figures and words, as one page, as PNG files and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from fedss.api.errors import UsageError
from fedss.console import show_result
from fedss.reporting.chart_style import Chart
from fedss.reporting.page import Section, render_page, write_page

Out = Annotated[
    Path | None,
    typer.Option(help="The page; its figures go beside it as PNG.", show_default="ANALYSIS.html"),
]

Row = dict[str, Any]
"""Names and figures, for programs."""


@dataclass(frozen=True)
class Finding:
    """The outcome of an analysis."""

    title: str
    headers: Sequence[str]
    cells: Sequence[Sequence[str]]
    """A row of words and numbers for people, under the headers."""
    rows: Sequence[Row]
    """The same for programs."""
    charts: Sequence[Chart]
    words: str
    """What the figures are, and what they are not."""
    num_words: int = 1
    """Columns of words before the columns of numbers."""


def publish(finding: Finding, name: str, out: Path | None, as_json: bool) -> None:
    """Write the page and its pictures, and print the table."""
    path = Path(f"{name}.html") if out is None else out
    if path.suffix not in (".html", ".htm"):
        raise UsageError(f"--out is {path}; expected a name that ends in .html")
    section = Section(finding.title)
    section.table(finding.headers, finding.cells, num_words=finding.num_words)
    section.words(finding.words)
    for chart in finding.charts:
        section.chart(chart)
    footer = (
        f"Made by fedss analyse {name} {version('fedss-mobile')}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    )
    page = render_page(finding.title, finding.words.partition(".")[0], (), [section], footer)
    pictures = write_page(path, page, [section])
    payload = {
        "page": str(path),
        "pictures": [str(picture) for picture in pictures],
        "rows": list(finding.rows),
    }
    table = Table(*finding.headers, title=finding.title)
    for row in finding.cells:
        table.add_row(*row)
    show_result(as_json, payload, Group(table, str(path)))
