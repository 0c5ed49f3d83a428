"""The mean of the clients' differences (Algorithm 1, line 12), streamed: one update is in memory at a time.

    ḡ = Σ_k n_k Δ_k / D,   n_k the client's number of examples

What D is for a row that only some clients held is a choice, offered by name:

- `selected`, the paper's: D = Σ n_k over *all* clients of the round.  A client that did not hold the row counts as
  having left it alone, so a row moves less the fewer clients sampled it.
- `holders`: D = Σ n_k over the clients that held the row: every row moves at full speed.

φ is held by everyone, so both agree on it.  The sums of rows are sparse: memory and time go with the rows touched, never
with n.

Sums are float32.  What one client may put into them is limited where its message is read (`wire.UpdateLimits`); should the
sums of a round overflow all the same, because limits were set very wide, `mean` refuses to give a mean, and nothing has
changed yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ondevice.contract.vocabulary import ClientUpdate, FloatArray, IntArray, Parameters, Rows, largest_entry

Denominator = Literal["selected", "holders"]

MAX_MEAN = 1e18
"""FedAdam keeps the square of the mean, which float32 holds up to 1.8e19."""


class MeanUnusable(ArithmeticError):
    """The updates of a round have no mean that the state could take."""


@dataclass(frozen=True)
class AggregatedRows:
    """ḡ of one table.  Views of the aggregator, good until its next round."""

    ids: IntArray
    """The rows that were touched, each once, in the order in which they first came."""
    delta: FloatArray
    """[len(ids), d]"""


@dataclass(frozen=True)
class AggregatedUpdate:
    """ḡ, and the weighted mean of the losses."""

    dense: Parameters
    tables: Mapping[str, AggregatedRows]
    num_examples: int
    mean_loss: float


class Aggregator:
    """Sums of one round at a time: `start`, `add` every update, `mean`."""

    def __init__(
        self,
        dense_shapes: Mapping[str, tuple[int, ...]],
        table_shapes: Mapping[str, tuple[int, int]],
        denominator: Denominator,
    ) -> None:
        self._dense_sums = {name: np.zeros(shape, np.float32) for name, shape in dense_shapes.items()}
        self._row_sums = {table: _RowSums(*shape) for table, shape in table_shapes.items()}
        self._denominator = denominator
        self._num_examples = 0
        self._loss_sum = 0.0

    def start(self) -> None:
        """Forget the round before."""
        self._num_examples = 0
        self._loss_sum = 0.0
        for total in self._dense_sums.values():
            total.fill(0)
        for rows in self._row_sums.values():
            rows.start()

    def add(self, update: ClientUpdate) -> None:
        """Take one client's update into the sums; it can be forgotten afterwards."""
        weight = np.float32(update.num_examples)
        for name, total in self._dense_sums.items():
            total += weight * update.dense[name]
        for table, rows in self._row_sums.items():
            rows.add(update.tables[table], weight)
        self._num_examples += update.num_examples
        self._loss_sum += update.num_examples * update.mean_loss

    def mean(self) -> AggregatedUpdate:
        """ḡ over everything added since `start`; `MeanUnusable` if it, or its square, is not finite."""
        if not self._num_examples:
            raise ValueError("no update was added, so there is nothing to average")
        dense = {name: total / np.float32(self._num_examples) for name, total in self._dense_sums.items()}
        examples = None if self._denominator == "holders" else self._num_examples
        tables = {table: rows.mean(examples) for table, rows in self._row_sums.items()}
        # numpy's max, because Python's loses a NaN
        every = (*dense.values(), *(rows.delta for rows in tables.values()))
        largest = float(np.max([largest_entry(values) for values in every], initial=0.0))
        if not largest <= MAX_MEAN:
            raise MeanUnusable(
                f"the mean of the updates reaches {largest:g}, and the server can take up to {MAX_MEAN:g}; "
                "lower server.max_change"
            )
        return AggregatedUpdate(dense, tables, self._num_examples, self._loss_sum / self._num_examples)


class _RowSums:
    """The sums of one table's rows, sparse."""

    def __init__(self, num_rows: int, dim: int) -> None:
        # Place among the sums that belongs to a row, or -1.  Made once: a round resets only the entries it set.
        self._place_of_row: npt.NDArray[np.int32] = np.full(num_rows, -1, np.int32)
        self._sums: FloatArray = np.zeros((0, dim), np.float32)
        self._holder_examples: FloatArray = np.zeros(0, np.float32)
        self._touched: IntArray = np.zeros(0, np.int64)
        self._num_touched = 0

    def start(self) -> None:
        self._place_of_row[self._touched[: self._num_touched]] = -1
        self._num_touched = 0

    def add(self, rows: Rows, weight: np.float32) -> None:
        """Rows seen before in this round are added to their sum, the others are copied into new ones."""
        ids, delta = rows.ids, rows.values
        places = self._place_of_row.take(ids)
        seen = np.flatnonzero(places >= 0)
        if len(seen):
            # Ids are unique within an update, so no sum is added to twice here.
            seen_places = places.take(seen)
            sums = delta.take(seen, axis=0)
            sums *= weight
            sums += self._sums.take(seen_places, axis=0)
            self._sums[seen_places] = sums
            self._holder_examples[seen_places] += weight
            new = np.flatnonzero(places < 0)
            ids, delta = ids.take(new), delta.take(new, axis=0)
        first, last = self._num_touched, self._num_touched + len(ids)
        self._make_room(last)
        np.multiply(delta, weight, out=self._sums[first:last])
        self._holder_examples[first:last] = weight
        self._touched[first:last] = ids
        self._place_of_row[ids] = np.arange(first, last, dtype=np.int32)
        self._num_touched = last

    def mean(self, num_examples: int | None) -> AggregatedRows:
        """Divided by the examples of the round, or of each row's holders where none is given; in place."""
        sums = self._sums[: self._num_touched]
        if num_examples is None:
            sums /= self._holder_examples[: self._num_touched, None]
        else:
            sums *= np.float32(1 / num_examples)
        return AggregatedRows(self._touched[: self._num_touched], sums)

    def _make_room(self, count: int) -> None:
        if count <= len(self._sums):
            return
        extra = max(count, 2 * len(self._sums)) - len(self._sums)
        self._sums = np.pad(self._sums, ((0, extra), (0, 0)))
        self._holder_examples = np.pad(self._holder_examples, (0, extra))
        self._touched = np.pad(self._touched, (0, extra))
