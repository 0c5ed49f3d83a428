"""Every figure in the tables of the README is one of the committed rows, rounded: nothing is typed from memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

Cells = list[str]


def tables() -> list[tuple[Cells, list[Cells]]]:
    """Header and rows of every Markdown table in the pages."""
    found: list[tuple[Cells, list[Cells]]] = []
    for page in PAGES:
        inside = False
        for line in page.read_text().splitlines():
            cells = [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]
            if not line.startswith("|"):
                inside = False
            elif not inside:
                found.append((cells, []))
                inside = True
            elif set(line) - set("|-: "):
                found[-1][1].append(cells)
    return found


def the_table(*header: str) -> list[Cells]:
    """The rows of the only table whose header starts like this."""
    (rows,) = [rows for cells, rows in tables() if cells[: len(header)] == list(header)]
    assert rows
    return rows


@pytest.mark.parametrize(
    ("name", "metric"), [("glyphs-table1", "top-1 (%)"), ("glyphs-table2", "MAP@10 (%)")]
)
def test_the_tables_of_methods_are_those_of_the_committed_runs(name: str, metric: str) -> None:
    expected = []
    for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
        sent = [row["bytes_down_per_client"], row["bytes_up_per_client"]]
        expected.append(
            [
                row["label"],
                str(row["num_negatives"] if row["num_negatives"] is not None else ""),
                f"{row['mean_width']:.0f}",
                f"{100 * row['width_share']:.1f}",
                f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
                *("" if not size else f"{size / 1000:.0f}" for size in sent),
            ]
        )
    assert the_table("method", "¦N_k¦", "¦S_k¦", "% of n", metric) == expected


def test_the_servers_ratios_are_those_of_the_committed_run() -> None:
    expected = [
        [
            row["figure"],
            f"{row['ratio']:.2f}",
            f"at most {row['at_most']:.2f}" if "at_most" in row else f"at least {row['at_least']:.2f}",
        ]
        for row in json.loads((RESULTS / "federation.json").read_text())
    ]
    assert the_table("figure", "ratio", "target") == expected


def test_what_a_step_costs_is_in_the_committed_rows() -> None:
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in (RESULTS / "bench-host.jsonl").read_text().splitlines()
    ]
    runtimes = ["executorch", "onnxruntime-stock", "onnxruntime-training", "executorch-stock"]
    compared = 0
    for label, *cells in the_table("", "executorch", "stock onnxruntime 1.31.1"):
        batch, size = (
            int(words.split()[position]) for words, position in zip(label.split(", "), (1, 0), strict=True)
        )
        for runtime, cell in zip(runtimes, cells, strict=True):
            wanted = {"runtime": runtime, "batch": batch, "micro_batch": batch, "image_size": size}
            wanted |= {"width": 170, "threads": 1}
            # The first: later rows of the same sizes are of artifacts that train less.
            measured = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
            if not cell:
                assert not measured, f"{runtime} at {label} was measured, and the table leaves it out"
                continue
            ratio, peak = measured[0]["ratio_to_eager"], measured[0]["peak_mb"]
            assert cell == f"{ratio:.{0 if ratio >= 10 else 2}f}, {peak:,.0f} MB", (runtime, label)
            compared += 1
    assert compared == 10
