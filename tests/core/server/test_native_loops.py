"""The loops in C++ against numpy's: the same bytes, whatever the rows, the optimizer and the order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondevice.contract.vocabulary import COLUMNS, ClientUpdate, FloatArray, Rows
from server_sim.server.aggregation import Aggregator, Denominator
from server_sim.server.native.library import native_library
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer
from server_sim.server.row_loop import NativeRowLoop, NumpyRowLoop, RowLoop, native_rule, row_loop
from server_sim.server.stores.memory import MemoryStore
from server_sim.server.sum_loop import NativeSumLoop, NumpySumLoop, SumLoop

LIBRARY = native_library()
OPTIMIZERS = [
    FedAvg(),
    FedAvg(0.7),
    FedAvgM(),
    FedAvgM(0.3, 0.5),
    FedAvgM(1.0, 0.0),
    FedAdam(),
    FedAdam(0.1, 0.5, 0.9, 1e-2),
    FedAdam(0.1, 0.0, 0.99, 1e-3),
]
# One entry, odd ones, and more than the widest register takes.
dims = st.sampled_from([1, 3, 17, 64, 129])


def native_row_loop(optimizer: ServerOptimizer) -> RowLoop:
    rule = native_rule(optimizer)
    assert LIBRARY is not None, "g++ is needed to test what it compiles: apt-get install g++"
    assert rule is not None
    return NativeRowLoop(LIBRARY, rule)


def native_sum_loop() -> SumLoop:
    assert LIBRARY is not None, "g++ is needed to test what it compiles: apt-get install g++"
    return NativeSumLoop(LIBRARY)


def wild(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Numbers of all sizes, with zeros of both signs, tiny ones, and ones whose square is no float32."""
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-42, 20, shape)
    values[rng.random(shape) < 0.1] = -0.0
    return values.astype(np.float32)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@given(seed=st.integers(0, 10_000), num_rows=st.integers(1, 150), dim=dims)
@settings(max_examples=15, deadline=None)
def test_rows_are_read_and_applied_to_the_same_bytes(
    optimizer: ServerOptimizer, seed: int, num_rows: int, dim: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((num_rows, dim), np.float32)
    stores = [MemoryStore(weights, optimizer.initial_moments) for _ in range(2)]
    loops = (NumpyRowLoop(optimizer), native_row_loop(optimizer))
    round_index = 0
    for _ in range(6):
        ids = rng.permutation(num_rows)[: rng.integers(0, num_rows + 1)]
        delta = wild(rng, (len(ids), dim))
        asked = np.sort(rng.choice(num_rows, rng.integers(1, num_rows + 1), replace=False))
        read = []
        for store, loop in zip(stores, loops, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                read.append(loop.read(store.records, store.current_at, asked, round_index).tobytes())
                loop.apply(store.records, store.current_at, ids, delta, round_index)
        assert read[0] == read[1]
        # Rounds pass: often one, sometimes more than a moment lasts.
        round_index += int(rng.choice([1, 2, 40, 30_000]))
    one, other = stores
    assert one.records.tobytes() == other.records.tobytes()
    assert np.array_equal(one.current_at, other.current_at)


@pytest.mark.parametrize("denominator", ["selected", "holders"])
@given(seed=st.integers(0, 10_000), num_clients=st.integers(1, 6), dim=dims)
@settings(max_examples=25, deadline=None)
def test_sums_are_the_same_bytes(denominator: Denominator, seed: int, num_clients: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    num_rows, shapes = int(rng.integers(1, 200)), {"w": (3, 5), "b": (int(rng.integers(1, 40_000)),)}
    aggregators = []
    for loop in (NumpySumLoop(), native_sum_loop()):
        aggregators.append(Aggregator(shapes, {COLUMNS: (num_rows, dim)}, denominator, loop))
    # The second round begins where the first one left off.
    for _ in range(2):
        updates = []
        for _ in range(num_clients):
            ids = np.sort(rng.choice(num_rows, rng.integers(1, num_rows + 1), replace=False))
            dense = {name: wild(rng, shape) for name, shape in shapes.items()}
            rows = Rows(ids, wild(rng, (len(ids), dim)))
            updates.append(ClientUpdate(dense, {COLUMNS: rows}, int(rng.integers(1, 1000)), 1.0))
        means: list[list[bytes | str]] = []
        for aggregator in aggregators:
            aggregator.start()
            for update in updates:
                aggregator.add(update)
            try:
                mean = aggregator.mean()
            except ArithmeticError as error:
                means.append([str(error)])
            else:
                rows_of = mean.tables[COLUMNS]
                dense_bytes = [value.tobytes() for value in mean.dense.values()]
                means.append([*dense_bytes, rows_of.ids.tobytes(), rows_of.delta.tobytes()])
        assert means[0] == means[1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_both_find_the_largest_entry(value: float) -> None:
    for loop in (NumpySumLoop(), native_sum_loop()):
        total = np.ones(100, np.float32)
        total[37] = value
        assert loop.divide(total, 2) == pytest.approx(abs(np.float32(value)) / 2, nan_ok=True)


@pytest.mark.parametrize("bad", [-1, 5, 1 << 40])
def test_an_id_that_is_no_row_is_refused_and_nothing_changes(bad: int) -> None:
    ids = np.array([2, bad])
    for loop in (NumpyRowLoop(FedAvg()), native_row_loop(FedAvg())):
        store = MemoryStore(np.ones((5, 3), np.float32), ())
        with pytest.raises(IndexError, match="expected 0 to 4"):
            loop.read(store.records, store.current_at, ids, 0)
        with pytest.raises(IndexError, match="expected 0 to 4"):
            loop.apply(store.records, store.current_at, ids, np.ones((2, 3), np.float32), 0)
        assert (store.records == 1).all()
        assert not store.current_at.any()


def test_an_optimizer_that_only_numpy_knows_is_left_to_numpy() -> None:
    class Halved(FedAvg):
        def update(self, weights: FloatArray, moments: object, delta: FloatArray) -> None:  # noqa: ARG002
            weights += delta / 2

    assert isinstance(row_loop(Halved()), NumpyRowLoop)
    assert isinstance(row_loop(FedAvg()), NativeRowLoop)


def test_without_a_compiler_everything_works_and_nothing_is_said(tmp_path: Path) -> None:
    program = (
        "from server_sim.server.row_loop import row_loop\n"
        "from server_sim.server.sum_loop import sum_loop\n"
        "from server_sim.server.optimizers import FedAvgM\n"
        "print(type(row_loop(FedAvgM())).__name__, type(sum_loop()).__name__)\n"
    )
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["NumpyRowLoop", "NumpySumLoop"]
    assert done.stderr == ""
