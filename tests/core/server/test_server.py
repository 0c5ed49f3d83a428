"""The server's arithmetic against dense references that touch every row every round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondevice.contract.vocabulary import COLUMNS, ClientUpdate, FloatArray, Rows
from server_sim.server.aggregation import Aggregator, Denominator
from server_sim.server.client_selection import select_clients
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer
from server_sim.server.row_table import RowTable

NUM_CLASSES, DIM = 30, 4
NUM_WORDS, WORD_DIM = 12, 3
TABLES = {COLUMNS: (NUM_CLASSES, DIM), "words": (NUM_WORDS, WORD_DIM)}


def random_rows(rng: np.random.Generator, num_rows: int, dim: int) -> Rows:
    ids = np.sort(rng.choice(num_rows, rng.integers(1, num_rows // 2), replace=False))
    return Rows(ids, rng.standard_normal((len(ids), dim), np.float32))


def random_update(rng: np.random.Generator, num_classes: int = NUM_CLASSES) -> ClientUpdate:
    return ClientUpdate(
        dense={"w": rng.standard_normal((3, 2), np.float32)},
        tables={
            COLUMNS: random_rows(rng, num_classes, DIM),
            "words": random_rows(rng, NUM_WORDS, WORD_DIM),
        },
        num_examples=int(rng.integers(1, 100)),
        mean_loss=float(rng.random()),
    )


@pytest.mark.parametrize("optimizer", [FedAvg(0.7), FedAvgM(0.7, 0.9), FedAdam(0.1, 0.9, 0.99, 1e-3)])
def test_lazy_rows_equal_dense_rows_over_50_random_rounds(optimizer: ServerOptimizer) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((NUM_CLASSES, DIM), np.float32)
    lazy = RowTable.fresh(optimizer, weights.copy())
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


def test_rows_that_nobody_sampled_move_by_momentum_alone() -> None:
    table = RowTable.fresh(FedAvgM(1.0, 0.5), np.zeros((3, 1), np.float32))
    table.apply(np.array([1]), np.ones((1, 1), np.float32), 0)
    # row 1: velocity 1, so it moves by 1, then 0.5, then 0.25; the others have no velocity
    assert table.read_all(1).tolist() == [[0], [1], [0]]
    assert table.read_all(2).tolist() == [[0], [1.5], [0]]
    assert table.read_all(3).tolist() == [[0], [1.75], [0]]


def test_without_momentum_a_row_that_nobody_sampled_keeps_every_bit() -> None:
    rng = np.random.default_rng(1)
    table = RowTable.fresh(FedAvg(1.0), rng.standard_normal((10, DIM), np.float32))
    before = table.store.arrays()["weights"].copy()
    table.apply(np.array([2, 7]), np.ones((2, DIM), np.float32), 0)
    untouched = np.delete(np.arange(10), [2, 7])
    assert np.array_equal(table.read_all(5)[untouched], before[untouched])


def test_reading_changes_nothing() -> None:
    table = RowTable.fresh(FedAvgM(), np.ones((6, DIM), np.float32))
    table.apply(np.array([3, 0]), np.ones((2, DIM), np.float32), 0)
    before = {name: array.copy() for name, array in table.store.arrays().items()}
    assert list(before) == ["current_at", "weights", "moment0"]
    table.read_all(40)
    for name, array in table.store.arrays().items():
        assert np.array_equal(before[name], array)


@pytest.mark.parametrize("denominator", ["selected", "holders"])
@given(seed=st.integers(0, 10_000), num_clients=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_both_denominators_match_a_dense_mean(denominator: Denominator, seed: int, num_clients: int) -> None:
    rng = np.random.default_rng(seed)
    updates = [random_update(rng) for _ in range(num_clients)]
    aggregator = Aggregator({"w": (3, 2)}, TABLES, denominator)
    for update in updates:
        aggregator.add(update)
    result = aggregator.mean()

    everyone = sum(update.num_examples for update in updates)
    for table, shape in TABLES.items():
        total = np.zeros(shape)
        holders = np.zeros(shape[0])
        for update in updates:
            rows = update.tables[table]
            total[rows.ids] += update.num_examples * rows.values.astype(np.float64)
            holders[rows.ids] += update.num_examples
        touched = np.flatnonzero(holders)
        divisor = holders[touched, None] if denominator == "holders" else everyone
        found = result.tables[table]
        order = np.argsort(found.ids)
        assert np.array_equal(found.ids[order], touched)
        np.testing.assert_allclose(found.delta[order], total[touched] / divisor, rtol=1e-5, atol=1e-6)
    expected = sum(u.num_examples * u.dense["w"].astype(np.float64) for u in updates) / everyone
    np.testing.assert_allclose(result.dense["w"], expected, rtol=1e-5, atol=1e-6)
    losses = [update.mean_loss for update in updates]
    weights = [update.num_examples for update in updates]
    assert result.mean_loss == pytest.approx(np.average(losses, weights=weights))


def test_a_new_round_of_aggregation_remembers_nothing_of_the_last() -> None:
    rng = np.random.default_rng(0)
    first, second = random_update(rng), random_update(rng)
    reused = Aggregator({"w": (3, 2)}, TABLES, "selected")
    reused.add(first)
    reused.mean()
    reused.start()
    reused.add(first)
    reused.start()
    reused.add(second)
    fresh = Aggregator({"w": (3, 2)}, TABLES, "selected")
    fresh.add(second)
    one, other = reused.mean(), fresh.mean()
    for table in TABLES:
        assert np.array_equal(one.tables[table].ids, other.tables[table].ids)
        assert np.array_equal(one.tables[table].delta, other.tables[table].delta)
    assert np.array_equal(one.dense["w"], other.dense["w"])


def test_a_model_without_tables_has_a_mean() -> None:
    aggregator = Aggregator({"w": (2,)}, {}, "holders")
    aggregator.start()
    aggregator.add(ClientUpdate({"w": np.array([1, 2], np.float32)}, {}, 1, 0.5))
    aggregator.add(ClientUpdate({"w": np.array([4, 5], np.float32)}, {}, 2, 0.5))
    mean = aggregator.mean()
    assert mean.dense["w"].tolist() == [3, 4]
    assert not mean.tables


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
