"""The tables of README and docs, as they are written."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

Cells = list[str]


def tables() -> dict[tuple[str, str], tuple[Cells, list[Cells]]]:
    """Header and rows of every Markdown table, by its page and first heading, which no two tables of a page share."""
    found: dict[tuple[str, str], tuple[Cells, list[Cells]]] = {}
    for page in PAGES:
        inside: list[Cells] | None = None
        for line in page.read_text().splitlines():
            cells = [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]
            if not line.startswith("|"):
                inside = None
            elif inside is None:
                key = (page.relative_to(ROOT).as_posix(), cells[0])
                assert key not in found, f"two tables of {key[0]} start with {key[1]!r}: tell them apart"
                found[key] = (cells, inside := [])
            elif set(line) - set("|-: "):
                inside.append(cells)
    return found
