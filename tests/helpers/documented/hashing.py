"""What hash tables and hashed labels bring and cost, as the tables in the docs must have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.documented.accuracy import at_budgets
from helpers.documented.tables import Cells

RESULTS = Path(__file__).parents[3] / "results"


def words_near() -> tuple[Cells, list[Cells]]:
    return at_budgets("hashing-figure1-small", "words beside a client's own")


def words_near_of_80k() -> tuple[Cells, list[Cells]]:
    return at_budgets("hashing-figure1-80k-small", "words beside a client's own, of 80,000")


def within_a_budget() -> tuple[Cells, list[Cells]]:
    rows = [
        [
            row["label"],
            f"{row['layers']:,}",
            f"{row['rows']:,.0f}",
            f"{100 * row['share']:.1f}",
            f"{row['parameters']:,.0f}",
            f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
        ]
        for row in (*_rows("hashing-table2-small"), *_rows("hashing-table2-80k-small"))
    ]
    titles = ["in layers", "rows", "of the output (%)", "parameters", "top-1 (%)"]
    return ["words, output layer", *titles], rows


def sums_over_samples() -> tuple[Cells, list[Cells]]:
    shares = ("mean", "deviation", "low", "high")
    rows = [
        [row["found"], *(f"{row[share]:.2f}" for share in shares), f"{row['places']:,}"]
        for row in _rows("partition-sum")
    ]
    return ["rows found", "mean", "deviation", "5 %", "95 %", "places"], rows


def grid_of_fedadam() -> tuple[Cells, list[Cells]]:
    """A line per setting of the server, a column per learning rate of the clients."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in _rows("hashing-grid-small"):
        _, tau, server, client = (part.rpartition(" ")[2] for part in row["label"].split(", "))
        found.setdefault((tau, server), {})[client] = f"{100 * row['mean']:.1f}"
    clients = list(next(iter(found.values())))
    rows = [
        [f"{float(tau):g}, {server}", *(scores[client] for client in clients)]
        for (tau, server), scores in found.items()
    ]
    return ["FedAdam: ε, learning rate", *(f"client {client}" for client in clients)], rows


def hashed_labels() -> tuple[Cells, list[Cells]]:
    rows = [
        [row["label"], f"{100 * row['best']:.1f}", f"{row['rounds']:.1f}", f"{row['bytes'] / 1e6:.0f}"]
        for row in _rows("fedmlh-table3-small")
    ]
    return ["hashed labels", "best precision (%)", "rounds until then", "MB until then"], rows


def hashed_labels_by_frequency() -> tuple[Cells, list[Cells]]:
    measures = [f"p{k}_{group}" for group in ("frequent", "infrequent") for k in (1, 3, 5)]
    rows = [
        [row["label"], *(f"{100 * row['measures'][measure]:.2f}" for measure in measures)]
        for row in _rows("fedmlh-table3-small")
    ]
    return ["classes", *(f"P@{name[1]} {name[3:]}" for name in measures)], rows


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


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows
