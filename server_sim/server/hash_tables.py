"""Rows of a table in hash tables: which of them lie in some buckets, found at a cost that does not depend on n.

An entry is one number, a bucket's bits before the row's, and entries are kept sorted, so that a bucket is a stretch of
them.  A row that moves to another bucket gets a new entry; the old one stays where it is and is passed over, since the
row's present bucket is known.  New entries are runs of their own, merged as in a log-structured tree: a refresh costs what
moved, times a logarithm.  When half of all entries are old, they are made anew.

Which row lies where follows from the rows alone, so nothing of this is saved: a resumed run makes the tables anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.vocabulary import FloatArray, IntArray


class HashTables:
    """L tables over n rows."""

    def __init__(self, simhash: SimHash, num_rows: int, blocks: Iterable[FloatArray]) -> None:
        """From all rows, block by block."""
        self.simhash = simhash
        self._num_rows = num_rows
        self._row_bits = max(1, (num_rows - 1).bit_length())
        self._buckets = np.empty((num_rows, simhash.num_tables), np.int64)
        start = 0
        for rows in blocks:
            self._buckets[start : start + len(rows)] = simhash.buckets_of_rows(rows)
            start += len(rows)
        self._runs = [self._all_entries()]

    def refresh(self, ids: IntArray, rows: FloatArray) -> None:
        """These rows have moved."""
        buckets = self.simhash.buckets_of_rows(rows)
        row, table = np.nonzero(buckets != self._buckets[ids])
        if not len(row):
            return
        self._buckets[ids] = buckets
        self._runs.append(np.sort(buckets[row, table] << self._row_bits | ids[row]))
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(_merged([before, last]))
        if sum(map(len, self._runs)) > 2 * self._buckets.size:
            self._runs = [self._all_entries()]

    def look_up(self, buckets: IntArray) -> tuple[IntArray, IntArray]:
        """The rows that lie in any of these sorted buckets, sorted, and in how many tables each does."""
        starts = buckets << self._row_bits
        entries = _merged([_stretches(run, starts, 1 << self._row_bits) for run in self._runs])
        bucket, ids = entries >> self._row_bits, entries & ((1 << self._row_bits) - 1)
        ids = ids[self._buckets[ids, bucket >> self.simhash.num_bits] == bucket]
        ids.sort()
        first = np.flatnonzero(_differs_from_the_one_before(ids))
        return ids[first], np.diff(first, append=len(ids))

    def _all_entries(self) -> IntArray:
        entries = (self._buckets << self._row_bits | np.arange(self._num_rows)[:, None]).reshape(-1)
        entries.sort()
        return entries


def _merged(runs: Sequence[IntArray]) -> IntArray:
    """Sorted runs as one, every entry once.  (numpy's unique takes a hash table, which is several times slower.)"""
    if len(runs) == 1:
        return runs[0]
    entries = np.concatenate(runs)
    entries.sort()
    return entries[_differs_from_the_one_before(entries)]


def _differs_from_the_one_before(numbers: IntArray) -> npt.NDArray[np.bool_]:
    differs = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=differs[1:])
    return differs


def _stretches(run: IntArray, starts: IntArray, length: int) -> IntArray:
    """All entries of a sorted run from each start to `length` behind it."""
    first, last = np.searchsorted(run, starts), np.searchsorted(run, starts + length)
    counts = last - first
    # 0, 1, ... within each stretch, plus where the stretch begins.
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    stretches: IntArray = run[np.repeat(first, counts) + within]
    return stretches
