"""FedAwS (Yu et al. 2020) against a server in plain lines that updates every column in every round."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from helpers.federations.tiny_federation import TinyFederation, tiny_plan

from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import COLUMNS, FloatArray, IntArray
from server_sim.experiment import ConfigurationError, load_experiment
from server_sim.one_round import RoundRules, run_round
from server_sim.preparation import check_experiment
from server_sim.schemes import neighbour_index
from server_sim.schemes.fedaws import FedAwS
from server_sim.schemes.spreadout import directions_of, nearest_others
from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer
from server_sim.server.state import ServerState

ROWS, DIM, ROUNDS = 30, 4, 8
SCHEME = FedAwS(spreadout_weight=0.05, margin=1.2, num_neighbors=3)


def plain_push(columns: FloatArray, touched: IntArray, scheme: FedAwS) -> FloatArray:
    """The gradient of the penalty by torch, one column at a time."""
    pushes = []
    rows = torch.from_numpy(columns.astype(np.float64))
    for number in touched:
        column = rows[number].clone().requires_grad_()
        others = torch.cat([rows[:number], rows[number + 1 :]])
        distances = (column / column.norm() - others / others.norm(dim=1, keepdim=True)).norm(dim=1)
        nearest = distances.sort().values[: scheme.num_neighbors]
        (scheme.margin - nearest).clamp(min=0).square().sum().backward()
        assert column.grad is not None
        pushes.append(column.grad.numpy())
    return np.array(pushes, np.float32)


@pytest.mark.parametrize("optimizer", [FedAvg(), FedAvgM(), FedAdam()], ids=lambda rule: type(rule).__name__)
def test_rounds_are_those_of_a_server_that_updates_every_column_every_round(
    optimizer: ServerOptimizer,
) -> None:
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((ROWS, DIM), np.float32)
    moments = [np.full((ROWS, DIM), fill, np.float32) for fill in optimizer.initial_moments]
    state = ServerState.fresh(optimizer, {"bias": np.zeros(1, np.float32)}, {COLUMNS: columns.copy()})
    for _ in range(ROUNDS):
        # In no order, as the aggregator gives them; most columns are left alone for some rounds.
        touched = rng.permutation(ROWS)[:5]
        delta = 0.1 * rng.standard_normal((5, DIM), np.float32)
        mean = AggregatedUpdate(
            {"bias": np.zeros(1, np.float32)}, {COLUMNS: AggregatedRows(touched, delta.copy())}, 5, 0.0
        )
        state.apply(SCHEME.before_apply(mean, state))
        assert mean.tables[COLUMNS].delta.tobytes() == delta.tobytes()
        every = np.zeros((ROWS, DIM), np.float32)
        every[touched] = delta
        push = plain_push(columns + every, touched, SCHEME)
        assert np.abs(push).max() > 0.01
        every[touched] -= np.float32(SCHEME.spreadout_weight) * push
        optimizer.update(columns, moments, every)
    found = state.tables[COLUMNS].read_all(state.round_index)
    np.testing.assert_allclose(found, columns, rtol=1e-4, atol=2e-5)


def test_the_nearest_others_are_those_of_a_full_comparison_whatever_the_blocks() -> None:
    rng = np.random.default_rng(1)
    table = directions_of(rng.standard_normal((50, 6), np.float32))
    ids = np.array([0, 3, 7, 20, 49])
    distances = np.linalg.norm(table[ids][:, None] - table, axis=2)
    distances[np.arange(5), ids] = np.inf
    expected = table[np.argsort(distances, axis=1)[:, :4]]
    for size in (1, 3, 7, 50):
        blocks = (table[start : start + size] for start in range(0, 50, size))
        found = nearest_others(ids, table[ids], blocks, 4)
        np.testing.assert_array_equal(found, expected)


def test_pushed_columns_move_apart_and_far_ones_stay() -> None:
    columns = np.array([[1, 0, 0], [1, 0.1, 0], [-1, 0, 0.1]], np.float32)
    state = ServerState.fresh(FedAvg(), {}, {COLUMNS: columns.copy()})
    scheme = FedAwS(spreadout_weight=0.1, margin=1.0, num_neighbors=5)
    still = AggregatedRows(np.array([2, 0]), np.zeros((2, 3), np.float32))
    state.apply(scheme.before_apply(AggregatedUpdate({}, {COLUMNS: still}, 1, 0.0), state))
    found = state.tables[COLUMNS].read_all(1)
    assert found[1:].tobytes() == columns[1:].tobytes()
    before, after = (directions_of(rows)[0] @ directions_of(rows)[1] for rows in (columns, found))
    assert after < before - 0.01


def test_without_weight_it_is_positives_only() -> None:
    rounds = []
    for before_apply in (RoundRules().before_apply, FedAwS(spreadout_weight=0).before_apply):
        tiny = TinyFederation(optimizer=FedAvgM())
        plan = tiny_plan()
        plan = type(plan)(plan.round_index, plan.table_sizes, Choice("positives"), plan.weighting)
        rules = RoundRules(before_apply=before_apply)
        run_round(tiny.state, plan, range(4), tiny.link(), tiny.aggregator(), rules)
        rounds.append(tiny.weights.tobytes())
    assert rounds[0] == rounds[1]


def clustered(rows: int, dim: int) -> FloatArray:
    """Directions around common centres, as trained classes lie."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((rows // 20, dim), np.float32)
    spread = 0.3 * rng.standard_normal((rows, dim), np.float32)
    return directions_of(centres[rng.integers(len(centres), size=rows)] + spread)


def test_an_index_that_looks_into_every_cell_finds_what_comparing_with_all_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbour_index, "CELLS_SEEN", 1.0)
    table, ids = clustered(300, 8), np.array([3, 77, 250])
    near = neighbour_index.nearest_by_index(ids, table[ids], [table[:100], table[100:]], 5)
    exact = nearest_others(ids, table[ids], [table[:100], table[100:]], 5)
    np.testing.assert_allclose(near, exact, atol=1e-6)


def test_an_index_finds_nearly_all_of_the_nearest() -> None:
    table, ids = clustered(4000, 16), np.arange(0, 4000, 40)
    near = neighbour_index.nearest_by_index(ids, table[ids], [table], 10)
    exact = nearest_others(ids, table[ids], [table], 10)
    found = [
        len({row.tobytes() for row in mine} & {row.tobytes() for row in theirs})
        for mine, theirs in zip(near, exact, strict=True)
    ]
    assert sum(found) > 0.95 * exact.shape[0] * exact.shape[1]
    again = neighbour_index.nearest_by_index(ids, table[ids], [table], 10)
    assert near.tobytes() == again.tobytes()


def test_a_search_by_index_pushes_as_comparing_with_all_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_index, "CELLS_SEEN", 1.0)
    columns = clustered(ROWS, DIM)
    state = ServerState.fresh(FedAvg(), {"bias": np.zeros(1, np.float32)}, {COLUMNS: columns})
    touched, delta = np.array([7, 2, 29]), np.full((3, DIM), 0.1, np.float32)
    mean = AggregatedUpdate(
        {"bias": np.zeros(1, np.float32)}, {COLUMNS: AggregatedRows(touched, delta)}, 3, 0.0
    )
    exact = SCHEME.before_apply(mean, state).tables[COLUMNS].delta
    indexed = (
        SCHEME.model_copy(update={"neighbor_search": "index"}).before_apply(mean, state).tables[COLUMNS].delta
    )
    assert np.abs(exact - delta).max() > 0.001
    np.testing.assert_allclose(indexed, exact, atol=1e-6)


def test_an_index_without_faiss_is_refused_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    experiment = load_experiment("glyphs-fedaws", ["scheme.neighbor_search=index"])
    with pytest.raises(ConfigurationError, match=r"takes faiss: pip install .*\[index\]"):
        check_experiment(experiment)
