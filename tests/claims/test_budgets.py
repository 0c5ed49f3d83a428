"""Accuracy within a budget of rounds or of batches, counted by hand."""

from __future__ import annotations

from pathlib import Path

from server_sim.experiment import load_experiment
from server_sim.metrics.budgets import by_batches, by_rounds, score_within
from server_sim.runs.records import RunRecord, round_record


def run_of(*rounds: tuple[int, float | None]) -> RunRecord:
    """A run with the examples of the largest client of each round, and its score where there is one."""
    experiment = load_experiment("glyphs-tiny", ["client.epochs=2", "client.batch_size=32"])
    lines = [
        {
            "round": number,
            "mean_loss": 1.0,
            "num_updates": 4,
            "most_examples": examples,
            "bytes_down": 1,
            "bytes_up": 1,
            "top1": score,
        }
        for number, (examples, score) in enumerate(rounds)
    ]
    records = tuple(round_record(line, experiment) for line in lines)
    return RunRecord(Path("run"), experiment, {}, records, 60, complete=True)


def test_a_round_costs_the_batches_of_its_largest_client() -> None:
    run = run_of((33, 0.1), (32, None), (1, 0.3))
    assert by_rounds(run) == [(1, 0.1), (3, 0.3)]
    # Two epochs each: 33 examples are two batches, 32 and 1 are one.
    assert by_batches(run) == [(4, 0.1), (8, 0.3)]


def test_a_budget_pays_for_the_last_score_within_it() -> None:
    points = [(4, 0.1), (8, 0.3), (12, 0.2)]
    assert [score_within(points, budget) for budget in (3, 4, 7, 8, 12)] == [None, 0.1, 0.1, 0.3, 0.2]


def test_a_run_that_ended_before_the_budget_was_spent_has_no_score_at_it() -> None:
    assert score_within([(4, 0.1)], 5) is None
    assert score_within([], 5) is None


def test_runs_that_kept_no_sizes_have_no_batches() -> None:
    assert by_batches(run_of((0, 0.1), (0, 0.2))) == []
