"""Every store against a plain dictionary: what was put is what comes back, row by row, and nothing else has changed."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.stores import STORES, RowStore

NUM_ROWS, DIM = 9, 3


class Reference:
    """Row -> its weights, its moments and its round."""

    def __init__(self, weights: FloatArray, moments: list[FloatArray]) -> None:
        self.rows = {
            row: (weights[row].tolist(), [moment[row].tolist() for moment in moments], 0)
            for row in range(len(weights))
        }

    def scatter(self, ids: IntArray, weights: FloatArray, moments: list[FloatArray], current_at: int) -> None:
        for at, row in enumerate(ids.tolist()):
            self.rows[row] = (weights[at].tolist(), [moment[at].tolist() for moment in moments], current_at)


def opened(name: str, num_moments: int, seed: int = 0) -> tuple[RowStore, Reference]:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((NUM_ROWS, DIM), np.float32)
    moments = [rng.standard_normal((NUM_ROWS, DIM), np.float32) for _ in range(num_moments)]
    reference = Reference(weights, moments)
    return STORES[name](
        weights.copy(), [moment.copy() for moment in moments], np.zeros(NUM_ROWS, np.int64)
    ), reference


def assert_same(store: RowStore, reference: Reference, ids: IntArray) -> None:
    weights, moments, current_at = store.gather(ids)
    for at, row in enumerate(ids.tolist()):
        expected = reference.rows[row]
        assert (
            weights[at].tolist(),
            [moment[at].tolist() for moment in moments],
            int(current_at[at]),
        ) == expected


row_ids = st.lists(st.integers(0, NUM_ROWS - 1), unique=True).map(lambda ids: np.array(ids, np.int64))


@pytest.mark.parametrize("num_moments", [0, 1, 2])
@pytest.mark.parametrize("name", STORES)
@given(puts=st.lists(row_ids, max_size=8), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_store_is_a_dictionary_of_rows(
    name: str, num_moments: int, puts: list[IntArray], seed: int
) -> None:
    store, reference = opened(name, num_moments, seed)
    assert (store.num_rows, store.dim) == (NUM_ROWS, DIM)
    rng = np.random.default_rng(seed)
    everything = np.arange(NUM_ROWS)
    for round_index, ids in enumerate(puts, start=1):
        weights = rng.standard_normal((len(ids), DIM), np.float32)
        moments = [rng.standard_normal((len(ids), DIM), np.float32) for _ in range(num_moments)]
        store.scatter(ids, weights, moments, round_index)
        reference.scatter(ids, weights, moments, round_index)
        assert_same(store, reference, ids)
        assert_same(store, reference, everything)
    assert_same(store, reference, everything[::-1].copy())


@pytest.mark.parametrize("name", STORES)
def test_what_is_gathered_is_a_copy(name: str) -> None:
    store, reference = opened(name, 1)
    weights, moments, current_at = store.gather(np.array([3, 0]))
    weights.fill(7)
    moments[0].fill(7)
    current_at.fill(7)
    assert_same(store, reference, np.arange(NUM_ROWS))


@pytest.mark.parametrize("num_moments", [0, 2])
@pytest.mark.parametrize("name", STORES)
def test_what_is_saved_is_everything_it_holds(name: str, num_moments: int) -> None:
    store, reference = opened(name, num_moments)
    ids = np.array([8, 2])
    moments = [np.full((2, DIM), 2, np.float32)] * num_moments
    store.scatter(ids, np.ones((2, DIM), np.float32), moments, 4)
    reference.scatter(ids, np.ones((2, DIM), np.float32), moments, 4)
    saved = store.arrays()
    assert set(saved) == {"weights", "current_at", *(f"moment{at}" for at in range(num_moments))}
    again = STORES[name](
        cast(FloatArray, saved["weights"].copy()),
        [cast(FloatArray, saved[f"moment{at}"].copy()) for at in range(num_moments)],
        cast(IntArray, saved["current_at"].copy()),
    )
    assert_same(again, reference, np.arange(NUM_ROWS))
