"""The committed rows keep the targets that they were measured for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[3] / "results"


def test_int8_is_a_quarter_of_the_bytes_for_at_most_three_tenths_of_a_point() -> None:
    rows = {row["label"]: row for row in json.loads((RESULTS / "glyphs-bytes.json").read_text())["rows"]}
    full, int8 = rows["fp32"], rows["int8"]
    assert full["num_seeds"] == int8["num_seeds"] == 3
    assert int8["bytes_up_per_client"] < 0.26 * full["bytes_up_per_client"]
    assert int8["mean"] > full["mean"] - 0.003


def test_a_table_larger_than_memory_keeps_its_targets() -> None:
    rows = json.loads((RESULTS / "large-table.json").read_text())
    assert {row["figure"][0] for row in rows if "at_most" in row} == set("abcde")
    assert [row["figure"] for row in rows if row["value"] > row.get("at_most", row["value"])] == []


def test_loading_images_takes_less_than_a_tenth_of_a_round_and_memory_stays_flat() -> None:
    rows = json.loads((RESULTS / "image-files.json").read_text())
    assert {row["figure"][0] for row in rows if "at_most" in row} == set("ab")
    assert [row["figure"] for row in rows if row["value"] > row.get("at_most", row["value"])] == []


def test_the_server_keeps_its_targets() -> None:
    rows = json.loads((RESULTS / "federation.json").read_text())
    assert {row["figure"][0] for row in rows if {"at_most", "at_least"} & row.keys()} == set("abcde")
    assert [row["figure"] for row in rows if row["ratio"] > row.get("at_most", row["ratio"])] == []
    assert [row["figure"] for row in rows if row["ratio"] < row.get("at_least", row["ratio"])] == []


def test_the_exported_step_takes_at_most_four_fifths_of_version_1s_time_and_no_more_memory() -> None:
    rows = {row["size"]: row for row in json.loads((RESULTS / "step-race.json").read_text())}
    assert rows.keys() == {"4x96", "32x96", "4x224"}
    assert [size for size, row in rows.items() if row["ratio"] > 0.80] == []
    assert [size for size, row in rows.items() if row["peak_mb"] > row["against_peak_mb"]] == []


@pytest.mark.parametrize("work", ["round, FedSS", "round, FullSoftmax"])
def test_a_simulated_round_takes_no_more_than_a_bare_loop_and_less_than_others(work: str) -> None:
    rows = json.loads((RESULTS / "race.json").read_text())
    ratios = {row["contender"]: row["ratio"] for row in rows if row["work"] == work}
    assert len(ratios) == 4
    assert ratios["ours"] == min(ratios.values())


def test_two_workers_give_1_8_times_the_updates_of_one_process() -> None:
    to_one, apart, to_bound = json.loads((RESULTS / "workers.json").read_text())
    assert to_one["ratio"] >= to_one["at_least"] == 1.8
    # The run had two cores: what shares nothing came near twice the speed.
    assert apart["ratio"] > 1.9
    assert to_bound["ratio"] > 0.9


@pytest.mark.parametrize(
    ("experiment", "order"),
    [
        ("icons-table1", ["NegOnly 160", "PosOnly", "FedSS 10", "FedSS 40", "FedSS 160", "FullSoftmax"]),
        ("icons-large", ["NegOnly 160", "PosOnly", "FedSS 40", "FedSS 160", "FullSoftmax"]),
    ],
)
def test_on_real_drawings_the_schemes_come_in_the_papers_order(experiment: str, order: list[str]) -> None:
    rows = json.loads((RESULTS / f"{experiment}.json").read_text())["rows"]
    assert all(row["num_seeds"] == 3 for row in rows)
    means = {f"{row['label']} {row['num_negatives'] or ''}".strip(): row["mean"] for row in rows}
    # The paper has FedAwS 0.6 below PosOnly in one table and 0.3 above it in the other: neither is an order.
    if "FedAwS" in means:
        assert means["NegOnly 160"] < means.pop("FedAwS") < means["FedSS 10"]
    assert sorted(means, key=lambda name: means[name]) == order
