"""The zoo's rows as the tables of docs/models.md.

    python -m benchmarks.networks.table

prints them in Markdown, from the committed rows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.networks.examine import PROGRAM, ZooRow
from benchmarks.networks.surveyed import OTHERS, SURVEYED, Network

ROWS = Path(__file__).parents[2] / "results" / "zoo.jsonl"
EXECUTORCH, ONNXRUNTIME = "executorch", "onnxruntime-stock"

Cells = list[str]
Table = tuple[Cells, list[Cells]]


def rows_of(path: Path = ROWS) -> list[ZooRow]:
    if not path.exists():
        return []
    return [ZooRow(**json.loads(line)) for line in path.read_text().splitlines()]


def summary(rows: Sequence[ZooRow]) -> Table:
    """Per runtime: how many are proven, how fast the convolutional ones are, and the memory beside eager's."""
    header = ["zoo", "networks run", "proven", "refused", "failed", "median step / eager's, convolutional"]
    header += ["slowest / eager's", "largest peak / eager's"]
    lines = []
    for title, networks in (("survey", SURVEYED), ("others", OTHERS)):
        for runtime in PROGRAM:
            found = [row for row in rows if row.runtime == runtime and row.model in _names(networks)]
            if found:
                lines.append([f"{title}, {runtime}", *_counts(found, len(networks)), *_figures(found)])
    return header, lines


def _names(networks: Sequence[Network]) -> set[str]:
    return {network.model for network in networks}


def _counts(found: Sequence[ZooRow], listed: int) -> Cells:
    outcomes = [row.outcome for row in found]
    return [
        f"{len(found)} of {listed}",
        *(str(outcomes.count(outcome)) for outcome in ("proven", "refused", "failed")),
    ]


def _figures(found: Sequence[ZooRow]) -> Cells:
    ratios = [row.ratio_to_eager for row in found if row.ratio_to_eager]
    convolutional = [
        row.ratio_to_eager for row in found if row.kind == "convolutional" and row.ratio_to_eager
    ]
    peaks = [row.peak_mb / row.eager_peak_mb for row in found if row.peak_mb and row.eager_peak_mb]
    return [
        f"{statistics.median(convolutional):.2f}" if convolutional else "",
        f"{max(ratios):.2f}" if ratios else "",
        f"{max(peaks):.2f}" if peaks else "",
    ]


def networks(rows: Sequence[ZooRow]) -> Table:
    """A line per network, in the order of the lists."""
    header = [
        "network",
        "px",
        "parameters",
        "ORT error",
        "ORT step",
        "ORT MB",
        "ET error",
        "ET step",
        "ET MB",
    ]
    header += ["ET plan MB", "ET portable", "eager MB"]
    lines = []
    for network in (*SURVEYED, *OTHERS):
        found = {row.runtime: row for row in rows if row.model == network.model}
        if found:
            any_row = max(found.values(), key=lambda row: row.parameters)
            eager = max((row.eager_peak_mb or 0 for row in found.values()), default=0)
            lines.append(
                [
                    network.model.removeprefix("benchmarks.networks."),
                    str(network.pixels) if network.kind in ("convolutional", "attention") else "",
                    f"{any_row.parameters / 1e6:.2f} M" if any_row.parameters else "",
                    *_measured(found.get(ONNXRUNTIME)),
                    *_measured(found.get(EXECUTORCH)),
                    *_planned(found.get(EXECUTORCH)),
                    f"{eager:.0f}" if eager else "",
                ]
            )
    return header, lines


def _measured(row: ZooRow | None) -> Cells:
    """Error, step and peak, or the outcome where there are none."""
    if row is None:
        return ["", "", ""]
    if row.error is None or row.ratio_to_eager is None or row.peak_mb is None:
        return [row.outcome, "", ""]
    return [f"{row.error:.0e}", f"{row.ratio_to_eager:.2f}", f"{row.peak_mb:.0f}"]


def _planned(row: ZooRow | None) -> Cells:
    if row is None or row.planned_mb is None or row.portable is None:
        return ["", ""]
    return [f"{row.planned_mb:.1f}", f"{row.portable:.0%}"]


def reasons(rows: Sequence[ZooRow]) -> Table:
    """Every network that is not proven, and why."""
    header = ["not exported", "runtime", "why"]
    return header, [
        [
            row.model.removeprefix("benchmarks.networks."),
            row.runtime,
            f"{row.outcome}: {_one_line(row.reason)}",
        ]
        for row in rows
        if row.outcome != "proven"
    ]


def _one_line(reason: str) -> str:
    return " ".join(reason.split()).replace("|", "/")


def markdown(table: Table) -> str:
    header, rows = table
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print("\n\n".join(markdown(table(rows_of())) for table in (summary, networks, reasons)))
