"""What hash tables and hashed labels cost, as the tables in the docs must have it."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.documented_tables import Cells

RESULTS = Path(__file__).parents[2] / "results"


def hash_tables() -> tuple[Cells, list[Cells]]:
    bounds = ("at_least", "at_most")
    rows = [
        [
            row["figure"].strip(),
            f"{row['value']:,.2f}",
            "".join(f"{bound.replace('_', ' ')} {row[bound]:g}" for bound in bounds if bound in row),
        ]
        for row in json.loads((RESULTS / "large-outputs.json").read_text())
    ]
    return ["hash tables of 1,000,000 rows", "value", "target"], rows


def steps_over_labels() -> tuple[Cells, list[Cells]]:
    rows = [
        [
            f"{row['classes']:,}, {row['scheme']}",
            row["runtime"],
            f"{row['peak_bytes'] / 1e6:,.0f}",
            f"{row['of_eager']:.2f}",
        ]
        for row in json.loads((RESULTS / "label-steps.json").read_text())
    ]
    return ["step over labels: classes, scheme", "runtime", "peak MB", "time / eager"], rows
