"""What is done to the rows of a round: gathered, drifted, updated and scattered, in the arrays where a store keeps them.

Two loops give the same bytes: numpy's, and one in C++ (`native/rows.cpp`) that does all of it in one pass per row and
fetches rows ahead.  The second is taken where there is a compiler and it knows the optimizer.

A *record* is a row's weights with its moments behind them, (1 + moments) · d float32 side by side: one trip to memory brings
all of a row.  A loop works on any two arrays `records` [n, (1 + moments) · d] and `current_at` [n], the round at whose start
each row is right.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Protocol

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.native.library import address, native_library
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer

_BLOCK = 512
"""Rows updated at a time: what is gathered, changed and scattered stays in the processor's cache."""


class RowLoop(Protocol):
    def read(self, records: FloatArray, current_at: IntArray, ids: IntArray, round_index: int) -> FloatArray:
        """The weights of these rows at the start of the round, [len(ids), d]; nothing changes."""
        ...

    def apply(
        self, records: FloatArray, current_at: IntArray, ids: IntArray, delta: FloatArray, round_index: int
    ) -> None:
        """Finish the round for these rows, in place; ids are distinct, in any order."""
        ...


def row_loop(optimizer: ServerOptimizer) -> RowLoop:
    """The fastest there is for this optimizer here."""
    library, rule = native_library(), native_rule(optimizer)
    return NumpyRowLoop(optimizer) if library is None or rule is None else NativeRowLoop(library, rule)


class NumpyRowLoop:
    """Any optimizer, on any machine."""

    def __init__(self, optimizer: ServerOptimizer) -> None:
        self._optimizer = optimizer
        self._parts = 1 + len(optimizer.initial_moments)

    def read(self, records: FloatArray, current_at: IntArray, ids: IntArray, round_index: int) -> FloatArray:
        _check_ids(ids, len(records))
        weights, moments = self._gathered(records, ids)
        self._optimizer.drift(weights, moments, round_index - current_at.take(ids))
        return weights

    def apply(
        self, records: FloatArray, current_at: IntArray, ids: IntArray, delta: FloatArray, round_index: int
    ) -> None:
        _check_ids(ids, len(records))
        for start in range(0, len(ids), _BLOCK):
            block = ids[start : start + _BLOCK]
            weights, moments = self._gathered(records, block)
            rounds_missed = round_index - current_at.take(block)
            self._optimizer.drift(weights, moments, rounds_missed)
            self._optimizer.fade(moments, rounds_missed)
            self._optimizer.update(weights, moments, delta[start : start + _BLOCK])
            records[block] = np.concatenate([weights, *moments], axis=1) if moments else weights
        current_at[ids] = round_index + 1

    def _gathered(self, records: FloatArray, ids: IntArray) -> tuple[FloatArray, list[FloatArray]]:
        """Copies, each in one piece: numpy is slower over strided halves of records."""
        gathered = records.take(ids, axis=0)
        weights, *moments = np.split(gathered, self._parts, axis=1)
        return np.ascontiguousarray(weights), [np.ascontiguousarray(moment) for moment in moments]


class NativeRule(ctypes.Structure):
    """`Rule` of `native/rows.cpp`."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("learning_rate", "momentum", "momentum_rest")),
        *((name, ctypes.c_float) for name in ("second_momentum", "second_rest", "tau")),
        *((name, ctypes.c_void_p) for name in ("decay", "second_decay", "travel")),
        *((name, ctypes.c_int64) for name in ("last_decay", "last_second_decay")),
        *((name, ctypes.c_void_p) for name in ("step_decay", "second_step_decay")),
        ("worthwhile", ctypes.c_int64),
    )
    optimizer: ServerOptimizer
    """Kept, because the tables are its own."""


def native_rule(optimizer: ServerOptimizer) -> NativeRule | None:
    """What the loop in C++ needs to know of an optimizer, or None if it does not know it."""
    # Not their subclasses, which may do something else.
    if type(optimizer) is FedAvg:
        rule = NativeRule(0, optimizer.learning_rate)
    elif type(optimizer) is FedAvgM:
        rule = NativeRule(1, optimizer.learning_rate, optimizer.momentum)
        rule.decay, rule.last_decay = address(optimizer.decay, np.float32), len(optimizer.decay) - 1
        rule.travel = address(optimizer.travel, np.float32)
    elif type(optimizer) is FedAdam:
        rule = NativeRule(
            2,
            optimizer.learning_rate,
            optimizer.momentum,
            1 - optimizer.momentum,
            optimizer.second_momentum,
            1 - optimizer.second_momentum,
            optimizer.tau,
        )
        rule.decay, rule.last_decay = address(optimizer.decay, np.float32), len(optimizer.decay) - 1
        rule.second_decay = address(optimizer.second_decay, np.float32)
        rule.last_second_decay = len(optimizer.second_decay) - 1
        first, second = optimizer.step_decays
        rule.step_decay, rule.second_step_decay = address(first, np.float32), address(second, np.float32)
        rule.worthwhile = len(first)
    else:
        return None
    rule.optimizer = optimizer
    return rule


class NativeRowLoop:
    """The optimizers that `native/rows.cpp` knows."""

    def __init__(self, library: ctypes.CDLL, rule: NativeRule) -> None:
        self._read, self._apply = library.fedss_read_rows, library.fedss_apply_rows
        self._rule = rule
        self._parts = 1 + len(rule.optimizer.initial_moments)
        self._known: tuple[weakref.ref[FloatArray], weakref.ref[IntArray]] | None = None
        self._table: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    def read(self, records: FloatArray, current_at: IntArray, ids: IntArray, round_index: int) -> FloatArray:
        dim = records.shape[1] // self._parts
        weights = np.empty((len(ids), dim), np.float32)
        table = self._table_of(records, current_at)
        outside = self._read(
            *table, address(ids, np.int64), len(ids), round_index, address(weights, np.float32)
        )
        if outside >= 0:
            _check_ids(ids, len(records))
        return weights

    def apply(
        self, records: FloatArray, current_at: IntArray, ids: IntArray, delta: FloatArray, round_index: int
    ) -> None:
        dim = records.shape[1] // self._parts
        if delta.shape != (len(ids), dim):
            raise ValueError(f"delta is {list(delta.shape)}; expected [{len(ids)}, {dim}]")
        table = self._table_of(records, current_at)
        outside = self._apply(
            *table, address(ids, np.int64), len(ids), round_index, address(delta, np.float32)
        )
        if outside >= 0:
            _check_ids(ids, len(records))

    def _table_of(self, records: FloatArray, current_at: IntArray) -> tuple[int, int, int, int, int]:
        """The first arguments of both functions.  The arrays are most often those of the call before, whose addresses are
        known: finding them out takes as long as reading a client's rows."""
        if self._known is None or self._known[0]() is not records or self._known[1]() is not current_at:
            if len(current_at) != len(records):
                raise ValueError(f"{len(current_at)} rounds for {len(records)} records")
            self._known = weakref.ref(records), weakref.ref(current_at)
            dim = records.shape[1] // self._parts
            self._table = (
                ctypes.addressof(self._rule),
                address(records, np.float32),
                address(current_at, np.int64),
                len(records),
                dim,
            )
        return self._table


def _check_ids(ids: IntArray, num_rows: int) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < num_rows:
        raise IndexError(f"row ids from {ids.min()} to {ids.max()}; expected 0 to {num_rows - 1}")
