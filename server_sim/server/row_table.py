"""A table with its optimizer state, by row: gathered for a slice, changed by an update, at a cost that does not depend on n.

A paper column is a row here, so a slice is a gather of contiguous rows.  A row is brought up to date lazily: the store
remembers the round at whose start it is right.  Reading it in round t first lets it drift through the rounds since then, in
which nobody sampled it (`server_sim.server.optimizers`), exactly as if it had been updated with g = 0 every round.  Reading
changes nothing: only `apply` and `adopt` write, and `apply` only the rows it is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.optimizers import ServerOptimizer
from server_sim.server.row_loop import row_loop
from server_sim.server.stores import RowStore
from server_sim.server.stores.memory import MemoryStore

_BLOCK = 8192
"""Rows read at a time by those who want all of them."""


class RowTable:
    """What the optimizer makes of a store's rows."""

    def __init__(self, optimizer: ServerOptimizer, store: RowStore) -> None:
        self.optimizer = optimizer
        self.store = store
        self._loop = row_loop(optimizer)

    @staticmethod
    def fresh(optimizer: ServerOptimizer, weights: FloatArray) -> RowTable:
        """A table at round 0, in memory; the weights become its own."""
        return RowTable(optimizer, MemoryStore(weights, optimizer.initial_moments))

    @property
    def num_rows(self) -> int:
        return self.store.num_rows

    @property
    def dim(self) -> int:
        return self.store.dim

    def read(self, ids: IntArray, round_index: int) -> FloatArray:
        """The rows as they stand at the start of the round, [s, d]; a copy."""
        opened = self.store.open(ids)
        return self._loop.read(opened.records, opened.current_at, opened.places, round_index)

    def stored(self, ids: IntArray) -> FloatArray:
        """The rows as they were last written, [s, d]; a copy."""
        opened = self.store.open(ids)
        return opened.records[opened.places, : self.dim]

    def blocks(self, round_index: int) -> Iterator[FloatArray]:
        """The whole table as `read` gives it, some rows at a time: what it takes grows with n in time, not in memory."""
        for start in range(0, self.num_rows, _BLOCK):
            yield self.read(np.arange(start, min(start + _BLOCK, self.num_rows)), round_index)

    def read_all(self, round_index: int) -> FloatArray:
        """The whole table at once."""
        return self.read(np.arange(self.num_rows), round_index)

    def apply(self, ids: IntArray, delta: FloatArray, round_index: int) -> None:
        """Finish round `round_index` for the rows that were touched in it: distinct ids in any order, delta [k, d]."""
        opened = self.store.open(ids)
        self._loop.apply(opened.records, opened.current_at, opened.places, delta, round_index)
        self.store.wrote(ids, opened)

    def adopt(self, weights: FloatArray, round_index: int) -> None:
        """Every row anew, right at the start of that round; moments are left as they are."""
        ids = np.arange(self.num_rows)
        opened = self.store.open(ids)
        opened.records[opened.places, : self.dim] = weights
        opened.current_at[opened.places] = round_index
        self.store.wrote(ids, opened)
