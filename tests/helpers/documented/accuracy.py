"""What the documented tables of accuracy and communication must say, from the committed rows of experiments and analyses."""

from __future__ import annotations

import json
from typing import Any

from helpers.documented.tables import ROOT, Cells

RESULTS = ROOT / "results"
METHODS = ["method", "¦N_k¦", "¦S_k¦", "% of n"]


def method_rows(name: str) -> list[Cells]:
    expected = []
    for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
        sent = [row["bytes_down_per_client"], row["bytes_up_per_client"]]
        expected.append(
            [
                row["label"],
                str(row["num_negatives"] if row["num_negatives"] is not None else ""),
                f"{row['mean_width']:.0f}",
                f"{100 * row['width_share']:.1f}",
                accuracy(row),
                *("" if not size else f"{size / 1000:.0f}" for size in sent),
            ]
        )
    return expected


def accuracy(row: dict[str, Any]) -> str:
    """One seed has no deviation."""
    spread = f" ± {100 * row['deviation']:.1f}" if row["num_seeds"] > 1 else ""
    return f"{100 * row['mean']:.1f}{spread}"


def table_1() -> tuple[Cells, list[Cells]]:
    return [*METHODS, "top-1 (%)", "kB down", "kB up"], method_rows("glyphs-table1")


def table_2() -> tuple[Cells, list[Cells]]:
    # The first heading tells the two tables apart.
    header = ["method, retrieval", *METHODS[1:], "MAP@10 (%)", "kB down", "kB up"]
    return header, method_rows("glyphs-table2")


def table_1_on_icons() -> tuple[Cells, list[Cells]]:
    return ["method, icons", *METHODS[1:], "top-1 (%)", "kB down", "kB up"], method_rows("icons-table1")


def table_1_on_more_icons() -> tuple[Cells, list[Cells]]:
    return ["method, more icons", *METHODS[1:], "top-1 (%)", "kB down", "kB up"], method_rows("icons-large")


def data_by_name() -> tuple[Cells, list[Cells]]:
    rows = [
        [
            f"`{row['name']}`",
            *(
                f"{row[key]:,}"
                for key in ("num_classes", "num_clients", "num_train_examples", "num_test_examples")
            ),
            f"{row['classes_per_client']['mean']:.0f}",
        ]
        for row in json.loads((RESULTS / "data-sets.json").read_text())
    ]
    return ["by name", "classes", "clients", "training images", "test images", "classes per client"], rows


def saved_by_sampling() -> tuple[Cells, list[Cells]]:
    rows = []
    for row in json.loads((RESULTS / "communication.json").read_text())["rows"]:
        paper_share = "" if row["paper_share"] is None else f"{100 * row['paper_share']:.1f}"
        rows.append(
            [
                f"{row['data']}, {row['embedding_dim']}",
                f"{row['num_classes']:,}",
                str(row["held"]),
                f"{row['extractor_parameters']:,}",
                f"{100 * row['share']:.1f}",
                paper_share,
                f"{100 * row['saving']:.1f}",
                f"{100 * row['paper_saving']:.1f}",
            ]
        )
    return ["data, d", "n", "¦S_k¦", "extractor", "head %", "paper", "saved %", "paper"], rows


def fewer_bytes() -> tuple[Cells, list[Cells]]:
    full, *_ = found = json.loads((RESULTS / "glyphs-bytes.json").read_text())["rows"]
    assert full["label"] == "fp32"
    rows = []
    for row in found:
        sent = [(row[key], row[key] / full[key]) for key in ("bytes_down_per_client", "bytes_up_per_client")]
        rows.append(
            [
                row["label"],
                f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
                f"{100 * (row['mean'] - full['mean']):+.2f}",
                *(f"{size / 1000:.0f} ({share:.2f})" for size, share in sent),
            ]
        )
    return ["updates, slices", "top-1 (%)", "points", "kB down", "kB up"], rows


def table_1_in_short() -> tuple[Cells, list[Cells]]:
    wanted = ["FedSS 10", "FedSS 160", "NegOnly 160", "PosOnly", "FullSoftmax"]
    rows = {
        f"{label} {negatives}".strip(): [width, share, score]
        for label, negatives, width, share, score, *_ in method_rows("glyphs-table1")
    }
    header = ["method, negatives", "classes per client", "% of all classes", "top-1 (%)"]
    return header, [[name, *rows[name]] for name in wanted]


def visual_schemes() -> tuple[Cells, list[Cells]]:
    rows = [
        [f"`{name}`", row["label"], accuracy(row)]
        for name in ("fedvc-table4-small", "glyphs-fedaws")
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    ]
    return ["experiment", "row", "top-1 (%)"], rows


def accuracy_at_budgets() -> tuple[Cells, list[Cells]]:
    return at_budgets("fedvc-table2-small", "FedVC")


def at_budgets(name: str, what: str) -> tuple[Cells, list[Cells]]:
    found = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    budgets = list(dict.fromkeys((row["budget"], row["at"]) for row in found))
    scores = {(row["label"], row["budget"], row["at"]): accuracy(row) for row in found}
    rows = [
        [label, *(scores[label, *budget] for budget in budgets)]
        for label in dict.fromkeys(row["label"] for row in found)
    ]
    return [what, *(f"@{kind} {at:,}" for kind, at in budgets)], rows
