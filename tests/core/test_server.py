"""The server's arithmetic against dense references that touch every column every round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_sim.server.column_table import ColumnTable

from ondevice.contract.vocabulary import ClientUpdate, Columns, FloatArray
from server_sim.server.aggregation import Aggregator, Denominator
from server_sim.server.client_selection import select_clients
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer

NUM_CLASSES, DIM = 30, 4


def random_update(rng: np.random.Generator, num_classes: int = NUM_CLASSES) -> ClientUpdate:
    class_ids = np.sort(rng.choice(num_classes, rng.integers(1, num_classes // 2), replace=False))
    return ClientUpdate(
        extractor_delta={"w": rng.standard_normal((3, 2), np.float32)},
        columns_delta=Columns(class_ids, rng.standard_normal((len(class_ids), DIM), np.float32)),
        num_examples=int(rng.integers(1, 100)),
        mean_loss=float(rng.random()),
    )


@pytest.mark.parametrize("optimizer", [FedAvg(0.7), FedAvgM(0.7, 0.9), FedAdam(0.1, 0.9, 0.99, 1e-3)])
def test_lazy_columns_equal_dense_columns_over_50_random_rounds(optimizer: ServerOptimizer) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((NUM_CLASSES, DIM), np.float32)
    lazy = ColumnTable.fresh(optimizer, weights.copy())
    dense = weights.copy()
    dense_moments = [np.full_like(dense, value) for value in optimizer.initial_moments]
    for round_index in range(50):
        touched = np.flatnonzero(rng.random(NUM_CLASSES) < 0.1)
        delta = rng.standard_normal((len(touched), DIM), np.float32)
        lazy.apply(touched, delta, round_index)
        everywhere = np.zeros_like(dense)
        everywhere[touched] = delta
        optimizer.update(dense, dense_moments, everywhere)
        seen = np.sort(rng.choice(NUM_CLASSES, 5, replace=False))
        assert relative_error(lazy.read(seen, round_index + 1), dense[seen]) < 1e-6
    assert relative_error(lazy.read_all(50), dense) < 1e-6


def test_columns_that_nobody_sampled_move_by_momentum_alone() -> None:
    table = ColumnTable.fresh(FedAvgM(1.0, 0.5), np.zeros((3, 1), np.float32))
    table.apply(np.array([1]), np.ones((1, 1), np.float32), 0)
    # column 1: velocity 1, so it moves by 1, then 0.5, then 0.25; the others have no velocity
    assert table.read_all(1).tolist() == [[0], [1], [0]]
    assert table.read_all(2).tolist() == [[0], [1.5], [0]]
    assert table.read_all(3).tolist() == [[0], [1.75], [0]]


def test_without_momentum_a_column_that_nobody_sampled_keeps_every_bit() -> None:
    rng = np.random.default_rng(1)
    table = ColumnTable.fresh(FedAvg(1.0), rng.standard_normal((10, DIM), np.float32))
    before = table.class_weights.copy()
    table.apply(np.array([2, 7]), np.ones((2, DIM), np.float32), 0)
    untouched = np.delete(np.arange(10), [2, 7])
    assert np.array_equal(table.read_all(5)[untouched], before[untouched])


def test_reading_changes_nothing() -> None:
    table = ColumnTable.fresh(FedAvgM(), np.ones((6, DIM), np.float32))
    table.apply(np.array([3, 0]), np.ones((2, DIM), np.float32), 0)
    before = [array.copy() for array in (table.class_weights, *table.moments, table.current_at)]
    table.read_all(40)
    for old, new in zip(before, (table.class_weights, *table.moments, table.current_at), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("denominator", ["selected", "holders"])
@given(seed=st.integers(0, 10_000), num_clients=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_both_denominators_match_a_dense_mean(denominator: Denominator, seed: int, num_clients: int) -> None:
    rng = np.random.default_rng(seed)
    updates = [random_update(rng) for _ in range(num_clients)]
    aggregator = Aggregator({"w": (3, 2)}, NUM_CLASSES, DIM, denominator)
    for update in updates:
        aggregator.add(update)
    result = aggregator.mean()

    total = np.zeros((NUM_CLASSES, DIM))
    holders = np.zeros(NUM_CLASSES)
    for update in updates:
        total[update.columns_delta.class_ids] += update.num_examples * update.columns_delta.weights.astype(
            np.float64
        )
        holders[update.columns_delta.class_ids] += update.num_examples
    everyone = sum(update.num_examples for update in updates)
    touched = np.flatnonzero(holders)
    divisor = holders[touched, None] if denominator == "holders" else everyone
    order = np.argsort(result.class_ids)
    assert np.array_equal(result.class_ids[order], touched)
    np.testing.assert_allclose(result.columns_delta[order], total[touched] / divisor, rtol=1e-5, atol=1e-6)
    expected = sum(u.num_examples * u.extractor_delta["w"].astype(np.float64) for u in updates) / everyone
    np.testing.assert_allclose(result.extractor_delta["w"], expected, rtol=1e-5, atol=1e-6)


def test_a_new_round_of_aggregation_remembers_nothing_of_the_last() -> None:
    rng = np.random.default_rng(0)
    first, second = random_update(rng), random_update(rng)
    reused = Aggregator({"w": (3, 2)}, NUM_CLASSES, DIM, "selected")
    reused.add(first)
    reused.mean()
    reused.start()
    reused.add(first)
    reused.start()
    reused.add(second)
    fresh = Aggregator({"w": (3, 2)}, NUM_CLASSES, DIM, "selected")
    fresh.add(second)
    one, other = reused.mean(), fresh.mean()
    assert np.array_equal(one.class_ids, other.class_ids)
    assert np.array_equal(one.columns_delta, other.columns_delta)
    assert np.array_equal(one.extractor_delta["w"], other.extractor_delta["w"])


def test_fedadam_takes_the_step_of_its_paper() -> None:
    optimizer = FedAdam(learning_rate=0.1, momentum=0.9, second_momentum=0.99, tau=0.01)
    weights, first, second = np.zeros(1, np.float32), np.zeros(1, np.float32), np.full(1, 1e-4, np.float32)
    optimizer.update(weights, [first, second], np.ones(1, np.float32))
    expected = 0.1 * 0.1 / (np.sqrt(0.99 * 1e-4 + 0.01) + 0.01)
    assert weights[0] == pytest.approx(expected, rel=1e-6)


def test_selection_is_without_replacement_and_proportional_selection_prefers_large_clients() -> None:
    sizes = [1] * 50 + [9] * 50
    uniform, proportional = np.zeros(100), np.zeros(100)
    for seed in range(400):
        chosen = select_clients(sizes, 10, "uniform", np.random.default_rng(seed))
        assert len(set(chosen)) == 10
        uniform[chosen] += 1
        proportional[select_clients(sizes, 10, "proportional", np.random.default_rng(seed))] += 1
    assert 0.8 < uniform[:50].sum() / uniform[50:].sum() < 1.25
    assert proportional[50:].sum() > 5 * proportional[:50].sum()


def test_asking_for_more_clients_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="clients_per_round is 5, but the population has 3 clients"):
        select_clients([1, 1, 1], 5, "uniform", np.random.default_rng(0))


def relative_error(given: FloatArray, expected: FloatArray) -> float:
    return float(np.linalg.norm(given - expected) / np.linalg.norm(expected))
