"""What finds rows of the classifier's table near a client's data, and answers its look-ups.

An index is a proposal and no result: it sees a row as it was last written.  A row that nobody touches drifts on under the
server's momentum (`server_sim.server.optimizers`) and is found where it was, until it is written again.  What a slice then
carries is the row as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.messages.envelope import Envelope
from ondevice.contract.messages.lookup import buckets_from_bytes, queries_from_bytes
from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.hash_tables import HashTables
from server_sim.server.row_table import RowTable

_BLOCK = 8192
"""Rows read at a time."""


class RowIndex(Protocol):
    """Kept in step with one table."""

    def find(self, envelope: Envelope, question: bytes) -> IntArray:
        """The ids of the rows that a look-up asks for, sorted.  Raises WireError for one that is none."""
        ...

    def refresh(self, ids: IntArray) -> None:
        """These rows were written."""
        ...


class HashIndex:
    """SimHash tables; of the rows in a client's buckets, those that lie there in the most tables."""

    def __init__(self, table: RowTable, simhash: SimHash, max_found: int) -> None:
        self._table = table
        self._max_found = max_found
        self._tables = HashTables(simhash, table.num_rows, stored_blocks(table))

    def find(self, envelope: Envelope, question: bytes) -> IntArray:
        buckets = buckets_from_bytes(question, envelope, self._tables.simhash)
        ids, hits = self._tables.look_up(buckets)
        if len(ids) <= self._max_found:
            return ids
        most = np.argsort(-hits, kind="stable")[: self._max_found]
        return np.sort(ids[most])

    def refresh(self, ids: IntArray) -> None:
        self._tables.refresh(ids, self._table.stored(ids))


class ExactIndex:
    """All inner products: the bound from above that approximate ones are compared with, at the cost of n."""

    def __init__(self, table: RowTable, max_found: int, by_angle: bool) -> None:
        self._table = table
        self._max_found = max_found
        self._by_angle = by_angle

    def find(self, envelope: Envelope, question: bytes) -> IntArray:
        queries = queries_from_bytes(question, envelope, self._table.dim)
        best = np.concatenate([self._best(rows, queries) for rows in stored_blocks(self._table)])
        if len(best) <= self._max_found:
            return np.arange(len(best))
        return np.sort(np.argsort(-best, kind="stable")[: self._max_found])

    def refresh(self, ids: IntArray) -> None:
        """Nothing is kept."""

    def _best(self, rows: FloatArray, queries: FloatArray) -> FloatArray:
        """The largest product of each row with any query."""
        products: FloatArray = (rows @ queries.T).max(1)
        if not self._by_angle:
            return products
        angles: FloatArray = products / np.maximum(np.sqrt((rows * rows).sum(1)), 1e-12)
        return angles


def stored_blocks(table: RowTable) -> Iterator[FloatArray]:
    """All rows as they were last written, some after the other."""
    for start in range(0, table.num_rows, _BLOCK):
        yield table.stored(np.arange(start, min(start + _BLOCK, table.num_rows)))
