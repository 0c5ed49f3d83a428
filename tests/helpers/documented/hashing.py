"""What hash tables and hashed labels cost, as the tables in the docs must have it."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.documented.tables import Cells

RESULTS = Path(__file__).parents[3] / "results"


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
    """A line per size, runtime and scheme: the host's row, then what the ARM64 devices add to it."""
    found: dict[tuple[int, str, str], dict[str, dict[str, float | None]]] = {}
    for row in json.loads((RESULTS / "label-steps.json").read_text()):
        found.setdefault((row["classes"], row["runtime"], row["scheme"]), {})[row["device"]] = row

    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    rows = []
    for (classes, runtime, scheme), by_device in found.items():
        host, qemu, phone = (by_device.get(device, {}) for device in ("host", "qemu", "emulator"))
        count = qemu.get("instructions")
        rows.append(
            [
                f"{classes:,}, {scheme}",
                runtime,
                cell(host.get("of_eager"), ".2f"),
                cell(host.get("of_fedavg"), ".2f"),
                cell(host.get("peak_mb"), ",.0f"),
                cell(None if count is None else count / 1e6, ",.0f"),
                cell(qemu.get("of_fedavg"), ".2f"),
                cell(phone.get("peak_mb"), ",.0f"),
            ]
        )
    titles = [
        "runtime",
        "time / eager",
        "time / FedAvg",
        "MB",
        "ARM64 million",
        "/ FedAvg",
        "MB on the phone",
    ]
    return ["step over labels: classes, scheme", *titles], rows
