"""A table with its optimizer state, by row: gathered for a slice, changed by an update, at a cost that does not depend on n.

A paper column is a row here, so a slice is a gather of contiguous rows.  A row is brought up to date lazily: the store
remembers the round at whose start it is right.  Reading it in round t first lets it drift through the rounds since then, in
which nobody sampled it (`server_sim.server.optimizers`), exactly as if it had been updated with g = 0 every round.  Reading
changes nothing: only `apply` writes, and only the rows it is given.
"""

from __future__ import annotations

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.optimizers import ServerOptimizer
from server_sim.server.stores import STORES, RowStore

_BLOCK = 512
"""Rows updated at a time: what is gathered, changed and scattered stays in the processor's cache."""


class RowTable:
    """What the optimizer makes of a store's rows."""

    def __init__(self, optimizer: ServerOptimizer, store: RowStore) -> None:
        self.optimizer = optimizer
        self.store = store

    @staticmethod
    def fresh(optimizer: ServerOptimizer, weights: FloatArray, store: str = "memory") -> RowTable:
        """A table at round 0, in the store of that name."""
        moments = [np.full_like(weights, value) for value in optimizer.initial_moments]
        return RowTable(optimizer, STORES[store](weights, moments, np.zeros(len(weights), np.int64)))

    @property
    def num_rows(self) -> int:
        return self.store.num_rows

    @property
    def dim(self) -> int:
        return self.store.dim

    def read(self, ids: IntArray, round_index: int) -> FloatArray:
        """The rows as they stand at the start of the round, [s, d]; a copy."""
        weights, _, _ = self._drifted(ids, round_index)
        return weights

    def read_all(self, round_index: int) -> FloatArray:
        """The whole table, for evaluation: the one operation whose cost grows with n."""
        return self.read(np.arange(self.num_rows), round_index)

    def apply(self, ids: IntArray, delta: FloatArray, round_index: int) -> None:
        """Finish round `round_index` for the rows that were touched in it: distinct ids in any order, delta [k, d]."""
        for start in range(0, len(ids), _BLOCK):
            block = ids[start : start + _BLOCK]
            weights, moments, rounds_missed = self._drifted(block, round_index)
            self.optimizer.fade(moments, rounds_missed)
            self.optimizer.update(weights, moments, delta[start : start + _BLOCK])
            self.store.scatter(block, weights, moments, round_index + 1)

    def _drifted(self, ids: IntArray, round_index: int) -> tuple[FloatArray, list[FloatArray], IntArray]:
        """The rows where they are now, their moments as stored, and how many rounds those are behind."""
        weights, moments, current_at = self.store.gather(ids)
        rounds_missed = round_index - current_at
        self.optimizer.drift(weights, moments, rounds_missed)
        return weights, moments, rounds_missed
