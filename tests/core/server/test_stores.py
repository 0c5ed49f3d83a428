"""Every store against a plain dictionary: what was put is what comes back, row by row, and nothing else has changed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.large_array import large_array
from server_sim.server.stores import STORES, RowStore
from server_sim.server.stores.mapped import MappedStore
from server_sim.server.stores.new_table import NewTable

NUM_ROWS, DIM = 9, 3


class Reference:
    """Row -> its record and its round."""

    def __init__(self, weights: FloatArray, initial_moments: tuple[float, ...]) -> None:
        moments = np.repeat(np.array(initial_moments, np.float32), DIM).tolist()
        self.rows = {row: ([*values.tolist(), *moments], 0) for row, values in enumerate(weights)}

    def put(self, ids: IntArray, records: FloatArray, current_at: int) -> None:
        for row, record in zip(ids.tolist(), records.tolist(), strict=True):
            self.rows[row] = (record, current_at)


def opened(name: str, num_moments: int, seed: int = 0) -> tuple[RowStore, Reference]:
    """A store at round 0; one that keeps files has them in a folder of its own, which goes with it."""
    weights = np.random.default_rng(seed).standard_normal((NUM_ROWS, DIM), np.float32)
    initial_moments = (0.1, 0.2)[:num_moments]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        store = STORES[name](NewTable(NUM_ROWS, DIM, lambda ids: weights[ids], initial_moments, path))
        if isinstance(store, MappedStore):
            store.create()
    return store, Reference(weights, initial_moments)


def put(store: RowStore, ids: IntArray, records: FloatArray, current_at: int) -> None:
    rows = store.open(ids)
    rows.records[rows.places] = records
    rows.current_at[rows.places] = current_at
    store.wrote(ids, rows)


def assert_same(store: RowStore, reference: Reference, ids: IntArray) -> None:
    rows = store.open(ids)
    assert rows.records.flags.c_contiguous
    for row, place in zip(ids.tolist(), rows.places.tolist(), strict=True):
        assert (rows.records[place].tolist(), int(rows.current_at[place])) == reference.rows[row]


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
        records = rng.standard_normal((len(ids), (1 + num_moments) * DIM), np.float32)
        put(store, ids, records, round_index)
        reference.put(ids, records, round_index)
        if isinstance(store, MappedStore) and round_index % 2:
            store.publish()
        assert_same(store, reference, ids)
        assert_same(store, reference, everything)
    assert_same(store, reference, everything[::-1].copy())


@pytest.mark.parametrize("num_moments", [0, 2])
def test_what_is_saved_of_memory_is_everything_it_holds(num_moments: int) -> None:
    store, reference = opened("memory", num_moments)
    ids = np.array([8, 2])
    records = np.arange(2 * (1 + num_moments) * DIM, dtype=np.float32).reshape(2, -1)
    put(store, ids, records, 4)
    reference.put(ids, records, 4)
    saved = store.arrays()
    assert list(saved) == ["current_at", "weights", *(f"moment{at}" for at in range(num_moments))]
    again, _ = opened("memory", num_moments, seed=1)
    for part, array in again.arrays().items():
        array[...] = saved[part]
    assert_same(again, reference, np.arange(NUM_ROWS))


@pytest.mark.parametrize("num_rows", [0, 7, 100_000])
def test_an_array_on_huge_pages_is_an_array_of_zeros_like_any_other(num_rows: int) -> None:
    array: FloatArray = large_array((num_rows, 5), np.float32)
    assert array.shape == (num_rows, 5)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert not array.any()
    array[...] = np.arange(num_rows)[:, None]
    other: FloatArray = large_array((num_rows, 5), np.float32)
    other[...] = -1
    # Each has memory of its own, to its last entry.
    assert (array == np.arange(num_rows)[:, None]).all()
