"""Rows in memory-mapped files: tables larger than memory, of which only what somebody touched exists.

    TABLE.records   float32 [n, (1 + moments) d]: weights and moments of a row side by side
    TABLE.index     int64 [n, 3]: which row it is, the round at whose start it is right, a checksum of all that

Rows lie in the order in which they were first touched, so that n of them may be named while the disk holds only those: the
rest of both files is a hole.  A row that is not there has its initial values, which are a function of its id.  In memory
there is one number per row: its place in the files.

Nothing is changed by `wrote`: new rows are *staged*, and read from there, until `publish` copies them into the maps.  What
happens in between is the journal's business (`server_sim.server.journaled_state`): a kill leaves the maps anywhere between
the last `sync` and the last `publish`, and what is staged is lost.

Writing to a map whose hole the disk cannot fill is a signal that kills the process.  So room is reserved when rows are
staged, where a full disk is an error that can be told.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ondevice.contract.portable_random import mix
from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.stores.new_table import NewTable
from server_sim.server.stores.open_rows import OpenRows

PAGE = mmap.PAGESIZE
RESIDENT_BYTES = 512 << 20
"""What maps may add to this process's memory; beyond that they are let go of, and their pages left to the system's cache."""
_RESERVED_AT_ONCE = 4 << 20
_BLOCK = 2048
"""Rows copied or checked before it is looked how much memory they took."""


class StoreDamaged(ValueError):
    """Files that do not hold what was put into them."""


class DiskFull(OSError):
    """There is no room for rows that were touched for the first time; nothing has changed."""


class MappedStore:
    """The rows of one table, in two files whose names start with the table's path."""

    def __init__(self, table: NewTable) -> None:
        self.num_rows, self.dim = table.num_rows, table.dim
        self.width = (1 + len(table.initial_moments)) * table.dim
        self.used = 0
        """Rows that the files hold."""
        self.extent: IntArray = np.array([self.num_rows, self.width, 0], np.int64)
        """Rows and numbers per row of the table, and how many rows the files held when the state was saved."""
        self.folder = table.path.parent
        self._new = table
        self._records_path = table.path.with_name(f"{table.path.name}.records")
        self._index_path = table.path.with_name(f"{table.path.name}.index")
        # Place + 1, or 0 for a row that nobody touched.  The system gives memory only to the pages that are written to.
        number = np.int32 if table.num_rows < 1 << 31 else np.int64
        self._place_after: npt.NDArray[np.signedinteger] = np.zeros(table.num_rows, number)
        self._staged: list[tuple[IntArray, FloatArray, IntArray]] = []
        self._reserved = 0
        # Words of 8 bytes, where a row is made of them: twice as fast.
        self._word = np.dtype(np.uint32 if self.width % 2 else np.uint64)
        words = 4 * self.width // self._word.itemsize
        self._factors = np.array([mix(at) | 1 for at in range(words + 2)], np.uint64)

    def create(self) -> None:
        """Empty files, in place of any that are there."""
        for path in (self._records_path, self._index_path):
            path.unlink(missing_ok=True)
        self._map("x+b")

    def open_files(self) -> None:
        """Files that a saved state goes with, as `extent` has it; the rows are not looked at before `check`."""
        used = int(self.extent[2])
        self._map("r+b")
        if not 0 <= used <= self.num_rows:
            raise StoreDamaged(f"{self._index_path} should hold {used} of {self.num_rows} rows")
        ids = self._index[:used, 0]
        if used and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_rows:
            raise StoreDamaged(f"{self._index_path} names rows that the table has not: it is damaged")
        self._place_after[ids] = np.arange(1, used + 1)
        if np.count_nonzero(self._place_after) != used:
            raise StoreDamaged(f"{self._index_path} names a row twice: it is damaged")
        self.used = used

    def check(self, round_index: int) -> None:
        """Every row is what was put there, in a round that has been: the whole of the files is read once."""
        for start in range(0, self.used, _BLOCK):
            places = np.arange(start, min(start + _BLOCK, self.used))
            records, index = self._taken(places), self._index[places]
            damaged = index[:, 2] != self._checksums(index[:, 0], records, index[:, 1])
            damaged |= (index[:, 1] < 0) | (index[:, 1] > round_index)
            if damaged.any():
                row = int(index[damaged.argmax(), 0])
                raise StoreDamaged(
                    f"{self._records_path} is damaged: row {row} is not what was saved; restore it, or start the run anew"
                )

    def sync(self) -> None:
        """Everything that was published is on the disk on return, at the cost of the pages that changed."""
        self._records_map.flush()
        self._index_map.flush()
        # What lay in the system's cache may have left it by then.
        self._asked_for.fill(False)

    def close(self) -> None:
        """The maps go when nothing refers to them any more."""
        self._records_file.close()
        self._index_file.close()

    def open(self, ids: IntArray) -> OpenRows:
        """Copies, for a map that is changed is changed for good."""
        return OpenRows(*self._gathered(ids), np.arange(len(ids)))

    def wrote(self, ids: IntArray, rows: OpenRows) -> None:
        self.stage(ids, rows.records, rows.current_at)

    def arrays(self) -> dict[str, FloatArray | IntArray]:
        self.extent[2] = self.used
        return {"extent": self.extent}

    def _gathered(self, ids: IntArray) -> tuple[FloatArray, IntArray]:
        """Copies: records [k, width], and the rounds at whose start they are right [k]."""
        places = self._place_after.take(ids) - 1
        known = np.flatnonzero(places >= 0)
        if len(known) == len(ids):
            records, current_at = self._taken(places), self._index[places, 1]
        else:
            records, current_at = np.empty((len(ids), self.width), np.float32), np.zeros(len(ids), np.int64)
            _put(records, known, self._taken(places[known]))
            current_at[known] = self._index[places[known], 1]
            new = np.flatnonzero(places < 0)
            records[new, : self.dim] = self._new.initial_rows(ids[new])
            for at, value in enumerate(self._new.initial_moments, start=1):
                records[new, at * self.dim : (at + 1) * self.dim] = value
        for staged_ids, staged_records, staged_at in self._staged:
            order = np.argsort(staged_ids)
            found = order[np.searchsorted(staged_ids, ids, sorter=order).clip(max=len(order) - 1)]
            here = np.flatnonzero(staged_ids[found] == ids)
            _put(records, here, staged_records[found[here]])
            current_at[here] = staged_at[found[here]]
        return records, current_at

    def stage(self, ids: IntArray, records: FloatArray, current_at: IntArray) -> None:
        """What these rows become: seen by `gather` at once, by the files with `publish`.  Room is reserved for new ones."""
        if len(ids):
            waiting = sum(len(staged_ids) for staged_ids, _, _ in self._staged)
            self._reserve(self.used + waiting + int(np.count_nonzero(self._place_after.take(ids) == 0)))
            self._staged.append((ids.copy(), records, current_at))

    def staged(self) -> tuple[IntArray, FloatArray, IntArray]:
        """Ids, records and rounds that wait for `publish`, in the order in which they came."""
        if len(self._staged) == 1:
            return self._staged[0]
        none = (np.empty(0, np.int64), np.empty((0, self.width), np.float32), np.empty(0, np.int64))
        ids, records, current_at = zip(none, *self._staged, strict=True)
        return np.concatenate(ids), np.concatenate(records), np.concatenate(current_at)

    def publish(self) -> None:
        """Into the files, which hold them for every process from now on, and on the disk after the next `sync`."""
        for ids, records, current_at in self._staged:
            new = ids[self._place_after.take(ids) == 0]
            self._place_after[new] = np.arange(self.used + 1, self.used + len(new) + 1)
            self.used += len(new)
            places = self._place_after.take(ids) - 1
            for start in range(0, len(places), _BLOCK):
                self._let_go_of_too_much(len(places[start : start + _BLOCK]))
                _put(self._records, places[start : start + _BLOCK], records[start : start + _BLOCK])
            self._index[places] = np.stack(
                [ids, current_at, self._checksums(ids, records, current_at)], axis=1
            )
        self._staged.clear()

    def _map(self, mode: str) -> None:
        """Both files at their full length, most of which is a hole."""
        self._records_file, self._records_map = _mapped(
            self._records_path, mode, 4 * self.num_rows * self.width
        )
        self._index_file, self._index_map = _mapped(self._index_path, mode, 8 * self.num_rows * 3)
        self._records: FloatArray = np.frombuffer(self._records_map, np.float32).reshape(-1, self.width)
        self._index: IntArray = np.frombuffer(self._index_map, np.int64).reshape(-1, 3)
        # Otherwise every row that is missed brings 128 kB of its neighbours.
        self._records_map.madvise(mmap.MADV_RANDOM)
        self._asked_for: npt.NDArray[np.bool_] = np.zeros(-(-self._records.nbytes // PAGE), np.bool_)
        self._resident_before = _resident_file_bytes()
        self._since_looked = 0

    def _reserve(self, rows: int) -> None:
        """Blocks on the disk for that many rows."""
        row_bytes = 4 * self.width
        # A row that is staged twice has been counted twice.
        rows = min(rows, self.num_rows)
        if rows <= self._reserved:
            return
        goal = min(max(rows, self._reserved + _RESERVED_AT_ONCE // row_bytes), self.num_rows)
        try:
            for file, size in ((self._records_file, row_bytes), (self._index_file, 24)):
                os.posix_fallocate(file.fileno(), self._reserved * size, (goal - self._reserved) * size)
        except OSError as error:
            raise DiskFull(
                error.errno,
                f"{self._records_path}: no room for {goal - self._reserved} more rows of {row_bytes} bytes "
                f"({error.strerror}); make room and go on with --resume: the run stands where its last round ended",
            ) from None
        self._reserved = goal

    def _taken(self, places: IntArray) -> FloatArray:
        self._ask_for(places)
        records = np.empty((len(places), self.width), np.float32)
        for start in range(0, len(places), _BLOCK):
            block = places[start : start + _BLOCK]
            self._let_go_of_too_much(len(block))
            self._records.take(block, axis=0, out=records[start : start + _BLOCK], mode="clip")
        return records

    def _let_go_of_too_much(self, rows: int) -> None:
        """Before so many rows are read or written."""
        self._since_looked += rows
        if self._since_looked < _BLOCK:
            return
        self._since_looked = 0
        # Measured and not counted, for the system maps the 64 kB around a page that is read.
        if _resident_file_bytes() > self._resident_before + RESIDENT_BYTES:
            # Of a shared map: changes are kept, this process alone lets go of the pages.
            self._records_map.madvise(mmap.MADV_DONTNEED)

    def _ask_for(self, places: IntArray) -> None:
        """All pages that were not asked for since the last `sync`, before the first of them is waited for."""
        row_bytes = 4 * self.width
        pages = np.concatenate([places * row_bytes // PAGE, ((places + 1) * row_bytes - 1) // PAGE])
        pages = pages[~self._asked_for[pages]]
        if not len(pages):
            return
        missing = np.unique(pages)
        self._asked_for[missing] = True
        # Neighbours in one call.
        gaps = np.flatnonzero(np.diff(missing) > 1)
        first = missing[np.concatenate([[0], gaps + 1])] * PAGE
        last = missing[np.concatenate([gaps, [-1]])] * PAGE + PAGE
        for start, end in zip(first.tolist(), last.tolist(), strict=True):
            length = min(end, len(self._records_map)) - start
            self._records_map.madvise(mmap.MADV_WILLNEED, start, length)

    def _checksums(self, ids: IntArray, records: FloatArray, current_at: IntArray) -> IntArray:
        """Words times odd numbers, modulo 2^64: no change of one word goes unnoticed, of several hardly any."""
        words = np.ascontiguousarray(records).view(self._word)
        sums: npt.NDArray[np.uint64] = np.einsum(
            "ij,j->i", words, self._factors[:-2], dtype=np.uint64, casting="same_kind"
        )
        sums += ids.astype(np.uint64) * self._factors[-2] + current_at.astype(np.uint64) * self._factors[-1]
        return sums.view(np.int64)


def _mapped(path: Path, mode: str, size: int) -> tuple[Any, mmap.mmap]:
    file = path.open(mode, buffering=0)
    if mode != "r+b":
        file.truncate(size)
        os.fsync(file.fileno())
    elif path.stat().st_size != size:
        raise StoreDamaged(
            f"{path} has {path.stat().st_size} bytes; expected {size}: it is of another table, or damaged"
        )
    return file, mmap.mmap(file.fileno(), size)


def _resident_file_bytes() -> int:
    """Of this process's memory, what is mapped from files."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * PAGE


def _put(table: FloatArray, places: IntArray, rows: FloatArray) -> None:
    """table[places] = rows, each row copied as one opaque item: half the time of numpy's entry by entry."""
    item: np.dtype[Any] = np.dtype((np.void, table.shape[1] * table.itemsize))
    table.view(item)[places] = np.ascontiguousarray(rows).view(item)
