"""The mean of the clients' differences (Algorithm 1, line 12), streamed: one update is in memory at a time.

    ḡ = Σ_k n_k Δ_k / D,   n_k the client's number of examples

What D is for a column that only some clients held is a choice, offered by name:

- `selected`, the paper's: D = Σ n_k over *all* clients of the round.  A client that did not hold the column counts as
  having left it alone, so a column moves less the fewer clients sampled it.
- `holders`: D = Σ n_k over the clients that held the column: every column moves at full speed.

φ is held by everyone, so both agree on it.  The columns' sums are sparse: memory and time go with the columns touched,
never with n.

Sums are float32.  What one client may put into them is limited where its message is read
(`ondevice.contract.wire.UpdateLimits`); should the sums of a round overflow all the same, because limits were set very
wide, `mean` refuses to give a mean, and nothing has changed yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ondevice.contract.vocabulary import ClientUpdate, FloatArray, IntArray, Parameters, largest_entry

Denominator = Literal["selected", "holders"]

MAX_MEAN = 1e18
"""FedAdam keeps the square of the mean, which float32 holds up to 1.8e19."""


class MeanUnusable(ArithmeticError):
    """The updates of a round have no mean that the state could take."""


@dataclass(frozen=True)
class AggregatedUpdate:
    """ḡ, and the weighted mean of the losses.  The columns are views of the aggregator, good until its next round."""

    extractor_delta: Parameters
    class_ids: IntArray
    """The columns that were touched, each once, in the order in which they first came."""
    columns_delta: FloatArray
    """[len(class_ids), d]"""
    num_examples: int
    mean_loss: float


class Aggregator:
    """Sums of one round at a time: `start`, `add` every update, `mean`."""

    def __init__(
        self,
        extractor_shapes: Mapping[str, tuple[int, ...]],
        num_classes: int,
        column_dim: int,
        denominator: Denominator,
    ) -> None:
        self._extractor_sums = {name: np.zeros(shape, np.float32) for name, shape in extractor_shapes.items()}
        self._denominator = denominator
        # Row of the sums that belongs to a class, or -1.  Made once: a round resets only the entries it set.
        self._row_of_class: npt.NDArray[np.int32] = np.full(num_classes, -1, np.int32)
        self._column_sums: FloatArray = np.zeros((0, column_dim), np.float32)
        self._holder_examples: FloatArray = np.zeros(0, np.float32)
        self._touched: IntArray = np.zeros(0, np.int64)
        self._num_touched = 0
        self._num_examples = 0
        self._loss_sum = 0.0

    def start(self) -> None:
        """Forget the round before."""
        self._row_of_class[self._touched[: self._num_touched]] = -1
        self._num_touched = 0
        self._num_examples = 0
        self._loss_sum = 0.0
        for total in self._extractor_sums.values():
            total.fill(0)

    def add(self, update: ClientUpdate) -> None:
        """Take one client's update into the sums; it can be forgotten afterwards."""
        weight = np.float32(update.num_examples)
        for name, total in self._extractor_sums.items():
            total += weight * update.extractor_delta[name]
        self._add_columns(update.columns_delta.class_ids, update.columns_delta.weights, weight)
        self._num_examples += update.num_examples
        self._loss_sum += update.num_examples * update.mean_loss

    def mean(self) -> AggregatedUpdate:
        """ḡ over everything added since `start`; `MeanUnusable` if it, or its square, is not finite."""
        if not self._num_examples:
            raise ValueError("no update was added, so there is nothing to average")
        columns = self._column_sums[: self._num_touched]
        if self._denominator == "holders":
            columns /= self._holder_examples[: self._num_touched, None]
        else:
            columns *= np.float32(1 / self._num_examples)
        extractor_delta = {
            name: total / np.float32(self._num_examples) for name, total in self._extractor_sums.items()
        }
        # numpy's max, because Python's loses a NaN
        largest = float(np.max([largest_entry(values) for values in (columns, *extractor_delta.values())]))
        if not largest <= MAX_MEAN:
            raise MeanUnusable(
                f"the mean of the updates reaches {largest:g}, and the server can take up to {MAX_MEAN:g}; "
                "lower server.max_change"
            )
        return AggregatedUpdate(
            extractor_delta=extractor_delta,
            class_ids=self._touched[: self._num_touched],
            columns_delta=columns,
            num_examples=self._num_examples,
            mean_loss=self._loss_sum / self._num_examples,
        )

    def _add_columns(self, class_ids: IntArray, delta: FloatArray, weight: np.float32) -> None:
        """Classes seen before in this round are added to their row, the others are copied into new rows."""
        rows = self._row_of_class.take(class_ids)
        seen = np.flatnonzero(rows >= 0)
        if len(seen):
            # Class ids are unique within an update, so no row is added to twice here.
            seen_rows = rows.take(seen)
            sums = delta.take(seen, axis=0)
            sums *= weight
            sums += self._column_sums.take(seen_rows, axis=0)
            self._column_sums[seen_rows] = sums
            self._holder_examples[seen_rows] += weight
            new = np.flatnonzero(rows < 0)
            class_ids, delta = class_ids.take(new), delta.take(new, axis=0)
        first, last = self._num_touched, self._num_touched + len(class_ids)
        self._make_room(last)
        np.multiply(delta, weight, out=self._column_sums[first:last])
        self._holder_examples[first:last] = weight
        self._touched[first:last] = class_ids
        self._row_of_class[class_ids] = np.arange(first, last, dtype=np.int32)
        self._num_touched = last

    def _make_room(self, rows: int) -> None:
        if rows <= len(self._column_sums):
            return
        extra = max(rows, 2 * len(self._column_sums)) - len(self._column_sums)
        self._column_sums = np.pad(self._column_sums, ((0, extra), (0, 0)))
        self._holder_examples = np.pad(self._holder_examples, (0, extra))
        self._touched = np.pad(self._touched, (0, extra))
