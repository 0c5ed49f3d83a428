"""The arithmetic of a round's sums: weighted, added, divided.

Two loops give the same bytes: numpy's, and one in C++ (`native/sums.cpp`) that takes each of them in one pass.  The second
is taken where there is a compiler.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ondevice.contract.vocabulary import FloatArray, IntArray, largest_entry
from server_sim.server.large_array import large_array
from server_sim.server.native.library import address, native_library

_BLOCK = 1 << 14
"""Entries added at a time: their products stay in the processor's cache."""


class RowSums:
    """The sums of one table's rows, sparse: memory and time go with the rows touched."""

    def __init__(self, num_rows: int, dim: int) -> None:
        # Which sum is a row's, counted from 1, or 0.  Made once: a round resets only the entries it set.
        self.sum_of_row: npt.NDArray[np.int32] = large_array(num_rows, np.int32)
        self.sums: FloatArray = np.zeros((0, dim), np.float32)
        self.holder_examples: FloatArray = np.zeros(0, np.float32)
        self.touched: IntArray = np.zeros(0, np.int64)
        self.num_touched = 0

    def make_room(self, count: int) -> None:
        """For so many more rows."""
        needed = self.num_touched + count
        if needed <= len(self.sums):
            return
        extra = max(needed, 2 * len(self.sums)) - len(self.sums)
        self.sums = np.pad(self.sums, ((0, extra), (0, 0)))
        self.holder_examples = np.pad(self.holder_examples, (0, extra))
        self.touched = np.pad(self.touched, (0, extra))
        self.__dict__.pop("addresses", None)

    @cached_property
    def addresses(self) -> tuple[int, int, int, int, int, int]:
        """The first arguments of `fedss_add_rows`, found out once per size."""
        return (
            address(self.sum_of_row, np.int32),
            len(self.sum_of_row),
            self.sums.shape[1],
            address(self.sums, np.float32),
            address(self.holder_examples, np.float32),
            address(self.touched, np.int64),
        )


class SumLoop(Protocol):
    def forget_rows(self, rows: RowSums) -> None:
        """No row has a sum any more; the sums themselves stay until the next round begins its own."""
        ...

    def add(self, total: FloatArray, values: FloatArray, weight: float) -> None:
        """total += weight · values, both of one dimension."""
        ...

    def divide(self, total: FloatArray, divisor: float) -> float:
        """In place; max |v| of the result, or NaN if there is one."""
        ...

    def add_rows(self, rows: RowSums, ids: IntArray, values: FloatArray, weight: float) -> None:
        """Rows that have a sum are added to it, the others begin one.  Distinct ids, values [len(ids), d]."""
        ...

    def divide_rows(self, rows: RowSums, num_examples: int | None) -> float:
        """By the examples of the round, or of each row's holders where none is given; as `divide`."""
        ...


def sum_loop() -> SumLoop:
    """The fastest there is here."""
    library = native_library()
    return NumpySumLoop() if library is None else NativeSumLoop(library)


class NumpySumLoop:
    def forget_rows(self, rows: RowSums) -> None:
        rows.sum_of_row[rows.touched[: rows.num_touched]] = 0
        rows.num_touched = 0

    def add(self, total: FloatArray, values: FloatArray, weight: float) -> None:
        for start in range(0, len(total), _BLOCK):
            part = slice(start, start + _BLOCK)
            total[part] += np.float32(weight) * values[part]

    def divide(self, total: FloatArray, divisor: float) -> float:
        total /= np.float32(divisor)
        return largest_entry(total)

    def add_rows(self, rows: RowSums, ids: IntArray, values: FloatArray, weight: float) -> None:
        numbers = rows.sum_of_row.take(ids)
        seen = np.flatnonzero(numbers)
        if len(seen):
            places = numbers.take(seen) - 1
            sums = values.take(seen, axis=0)
            sums *= np.float32(weight)
            sums += rows.sums.take(places, axis=0)
            rows.sums[places] = sums
            rows.holder_examples[places] += np.float32(weight)
            new = np.flatnonzero(numbers == 0)
            ids, values = ids.take(new), values.take(new, axis=0)
        rows.make_room(len(ids))
        first, last = rows.num_touched, rows.num_touched + len(ids)
        np.multiply(values, np.float32(weight), out=rows.sums[first:last])
        rows.holder_examples[first:last] = weight
        rows.touched[first:last] = ids
        rows.sum_of_row[ids] = np.arange(first + 1, last + 1, dtype=np.int32)
        rows.num_touched = last

    def divide_rows(self, rows: RowSums, num_examples: int | None) -> float:
        sums = rows.sums[: rows.num_touched]
        if num_examples is None:
            sums /= rows.holder_examples[: rows.num_touched, None]
        else:
            sums *= np.float32(1 / num_examples)
        return largest_entry(sums)


@dataclass(frozen=True)
class NativeSumLoop:
    library: ctypes.CDLL

    def forget_rows(self, rows: RowSums) -> None:
        sum_of_row, touched = address(rows.sum_of_row, np.int32), address(rows.touched, np.int64)
        self.library.fedss_forget_rows(sum_of_row, touched, rows.num_touched)
        rows.num_touched = 0

    def add(self, total: FloatArray, values: FloatArray, weight: float) -> None:
        if len(total) != len(values):
            raise ValueError(f"{len(values)} values for a total of {len(total)}")
        at, values_at = address(total, np.float32), address(values, np.float32)
        self.library.fedss_add_scaled(at, values_at, len(total), weight)

    def divide(self, total: FloatArray, divisor: float) -> float:
        return float(self.library.fedss_divide(address(total, np.float32), total.size, divisor))

    def add_rows(self, rows: RowSums, ids: IntArray, values: FloatArray, weight: float) -> None:
        rows.make_room(len(ids))
        dim = rows.sums.shape[1]
        if values.shape != (len(ids), dim):
            raise ValueError(f"values are {list(values.shape)}; expected [{len(ids)}, {dim}]")
        ids_at, values_at = address(ids, np.int64), address(values, np.float32)
        num_touched: int = self.library.fedss_add_rows(
            *rows.addresses, rows.num_touched, ids_at, values_at, len(ids), weight
        )
        if num_touched < 0:
            raise IndexError(f"row id {ids[-1 - num_touched]}; expected 0 to {len(rows.sum_of_row) - 1}")
        rows.num_touched = num_touched

    def divide_rows(self, rows: RowSums, num_examples: int | None) -> float:
        sums = rows.sums[: rows.num_touched]
        if num_examples is None:
            holders = address(rows.holder_examples, np.float32)
            return float(self.library.fedss_divide_rows(address(sums, np.float32), *sums.shape, holders))
        return float(self.library.fedss_multiply(address(sums, np.float32), sums.size, 1 / num_examples))
