"""A report as one HTML file that needs nothing else: sections of words, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from fedss.reporting.chart_style import Chart
from fedss.reporting.style import style_sheet


@dataclass(frozen=True)
class Headline:
    """A number that a reader should see first, and what it is."""

    number: str
    words: str


@dataclass
class Section:
    """A part of the page.  Everything that is added is escaped; charts are kept, to be written beside the page too."""

    title: str
    html: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)

    def words(self, text: str) -> None:
        self.html.append(f"<p>{escape(text)}</p>")

    def note(self, text: str) -> None:
        self.html.append(f'<p class="note">{escape(text)}</p>')

    def chart(self, chart: Chart) -> None:
        self.charts.append(chart)
        self.html.append(f"<figure>{chart.svg}<figcaption>{escape(chart.caption)}</figcaption></figure>")

    def commands(self, text: str, *, folded: str = "") -> None:
        self._append(f"<pre>{escape(text)}</pre>", folded)

    def _append(self, html: str, folded: str) -> None:
        """`folded` hides it behind a line of that text."""
        self.html.append(f"<details><summary>{escape(folded)}</summary>{html}</details>" if folded else html)

    def table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        num_words: int = 1,
        marked: Iterable[int] = (),
        folded: str = "",
    ) -> None:
        """`num_words` columns of words, then numbers; `marked` rows stand out; `folded` hides it all behind a line."""
        marked = set(marked)
        kinds = ["" if place < num_words else ' class="number"' for place in range(len(headers))]
        head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, headers, strict=True))
        body = []
        for number, row in enumerate(rows):
            cells = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
            body.append(f'<tr class="differs">{cells}</tr>' if number in marked else f"<tr>{cells}</tr>")
        table = (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )
        self._append(table, folded)


def render_page(
    title: str, subtitle: str, headlines: Sequence[Headline], sections: Sequence[Section], footer: str
) -> str:
    """The whole file."""
    numbered = list(enumerate(sections, start=1))
    links = "".join(f'<a href="#part-{number}">{escape(section.title)}</a>' for number, section in numbered)
    cards = "".join(f"<div><b>{escape(h.number)}</b><span>{escape(h.words)}</span></div>" for h in headlines)
    parts = "\n".join(
        f'<section id="part-{number}"><h2>{escape(section.title)}</h2>\n{"".join(section.html)}</section>'
        for number, section in numbered
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style_sheet()}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>
<div class="headlines">{cards}</div>
<nav>{links}</nav>
{parts}
<footer>{escape(footer)}</footer>
</main>
</body>
</html>
"""


def write_page(out: Path, page: str, sections: Sequence[Section]) -> list[Path]:
    """The figures first, so that a page that is there has its pictures."""
    out.parent.mkdir(parents=True, exist_ok=True)
    pictures = []
    for section in sections:
        for chart in section.charts:
            picture = out.with_name(f"{out.stem}-{chart.name}.png")
            chart.write_png(picture)
            pictures.append(picture)
    temporary = out.with_name(f".{out.name}.partial")
    # Reasons in runs of older versions may hold half a surrogate pair, which no file can.
    temporary.write_text(page, encoding="utf-8", errors="backslashreplace")
    temporary.replace(out)
    return pictures
