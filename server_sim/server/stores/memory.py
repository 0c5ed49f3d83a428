"""Rows in plain arrays: as fast as memory is, and as large."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.large_array import large_array
from server_sim.server.stores.new_table import NewTable
from server_sim.server.stores.open_rows import OpenRows

_BLOCK = 4096
"""Initial rows asked for at a time."""


class MemoryStore:
    """The weights given are copied."""

    def __init__(self, weights: FloatArray, initial_moments: Sequence[float]) -> None:
        self.num_rows, self.dim = weights.shape
        width = (1 + len(initial_moments)) * self.dim
        self.records = large_array((self.num_rows, width), np.float32)
        self.records[:, : self.dim] = weights
        self.records[:, self.dim :] = np.repeat(np.array(initial_moments, np.float32), self.dim)
        self.current_at = large_array(self.num_rows, np.int64)

    @staticmethod
    def of(table: NewTable) -> MemoryStore:
        weights = np.empty((table.num_rows, table.dim), np.float32)
        for start in range(0, table.num_rows, _BLOCK):
            ids = np.arange(start, min(start + _BLOCK, table.num_rows))
            weights[ids] = table.initial_rows(ids)
        return MemoryStore(weights, table.initial_moments)

    def open(self, ids: IntArray) -> OpenRows:
        return OpenRows(self.records, self.current_at, ids)

    def wrote(self, ids: IntArray, rows: OpenRows) -> None:
        """It is where it should be."""

    def arrays(self) -> dict[str, FloatArray | IntArray]:
        weights, *moments = np.split(self.records, self.records.shape[1] // self.dim, axis=1)
        return {
            "current_at": self.current_at,
            "weights": weights,
            **{f"moment{index}": moment for index, moment in enumerate(moments)},
        }
