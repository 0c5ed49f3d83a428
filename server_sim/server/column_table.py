"""W with its optimizer state, by column: gathered for a slice, changed by an update, at a cost that does not depend on n.

`class_weights` is [n, d]: a paper column is an array row, so a slice is a gather of contiguous rows.  A column is brought
up to date lazily: `current_at[c]` is the round at whose start column c is right.  Reading it in round t first lets it
drift through the t − current_at[c] rounds in which nobody sampled it (`server_optimizers`), exactly as if it had been
updated with g = 0 every round.  Reading changes nothing: only `apply` writes, and only the columns it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.optimizers import ServerOptimizer

_BLOCK = 512
"""Columns updated at a time: what is gathered, changed and scattered stays in the processor's cache."""


class ColumnTable:
    """The arrays are the caller's and are changed in place by `apply`."""

    def __init__(
        self,
        optimizer: ServerOptimizer,
        class_weights: FloatArray,
        moments: Sequence[FloatArray],
        current_at: IntArray,
    ) -> None:
        self.optimizer = optimizer
        self.class_weights = class_weights
        self.moments = list(moments)
        self.current_at = current_at

    @staticmethod
    def fresh(optimizer: ServerOptimizer, class_weights: FloatArray) -> ColumnTable:
        """A table at round 0."""
        moments = [np.full_like(class_weights, value) for value in optimizer.initial_moments]
        return ColumnTable(optimizer, class_weights, moments, np.zeros(len(class_weights), np.int64))

    @property
    def num_classes(self) -> int:
        return len(self.class_weights)

    @property
    def column_dim(self) -> int:
        return int(self.class_weights.shape[1])

    def read(self, class_ids: IntArray, round_index: int) -> FloatArray:
        """W_S as it stands at the start of the round, [s, d]; a copy."""
        weights, _, _ = self._drifted(class_ids, round_index)
        return weights

    def read_all(self, round_index: int) -> FloatArray:
        """The whole of W, for evaluation: the one operation whose cost grows with n."""
        return self.read(np.arange(self.num_classes), round_index)

    def apply(self, class_ids: IntArray, delta: FloatArray, round_index: int) -> None:
        """Finish round `round_index` for the columns that were touched in it: distinct ids in any order, delta [k, d]."""
        for start in range(0, len(class_ids), _BLOCK):
            block = class_ids[start : start + _BLOCK]
            weights, moments, rounds_missed = self._drifted(block, round_index)
            self.optimizer.fade(moments, rounds_missed)
            self.optimizer.update(weights, moments, delta[start : start + _BLOCK])
            _scatter(self.class_weights, block, weights)
            for stored, moment in zip(self.moments, moments, strict=True):
                _scatter(stored, block, moment)
        self.current_at[class_ids] = round_index + 1

    def _drifted(
        self, class_ids: IntArray, round_index: int
    ) -> tuple[FloatArray, list[FloatArray], IntArray]:
        """The columns where they are now, their moments as stored, and how many rounds those are behind."""
        weights = self.class_weights.take(class_ids, axis=0)
        moments = [moment.take(class_ids, axis=0) for moment in self.moments]
        rounds_missed = round_index - self.current_at.take(class_ids)
        self.optimizer.drift(weights, moments, rounds_missed)
        return weights, moments, rounds_missed


def _scatter(table: FloatArray, class_ids: IntArray, rows: FloatArray) -> None:
    """table[class_ids] = rows, each row copied as one opaque item: half the time of numpy's entry by entry."""
    item: np.dtype[Any] = np.dtype((np.void, table.shape[1] * table.itemsize))
    table.view(item)[class_ids] = rows.view(item)
