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

from ondevice.contract.messages.flat_parameters import FlatParameters
from ondevice.contract.vocabulary import ClientUpdate, FloatArray, IntArray, Parameters
from server_sim.server.sum_loop import RowSums, SumLoop, sum_loop

Denominator = Literal["selected", "holders"]

MAX_MEAN = 1e18
"""FedAdam keeps the square of the mean, which float32 holds up to 1.8e19."""


class MeanUnusable(ArithmeticError):
    """The updates of a round have no mean that the state could take."""


@dataclass(frozen=True)
class AggregatedRows:
    """ḡ of one table."""

    ids: IntArray
    """The rows that were touched, each once, in the order in which they first came."""
    delta: FloatArray
    """[len(ids), d]"""


@dataclass(frozen=True)
class AggregatedUpdate:
    """ḡ, and the weighted mean of the losses.  Views of the aggregator, good until its next round."""

    dense: Parameters
    tables: Mapping[str, AggregatedRows]
    num_examples: int
    mean_loss: float


class Aggregator:
    """Sums of one round at a time: `start`, `add` every update, `mean`, once."""

    def __init__(
        self,
        dense_shapes: Mapping[str, tuple[int, ...]],
        table_shapes: Mapping[str, tuple[int, int]],
        denominator: Denominator,
        loop: SumLoop | None = None,
    ) -> None:
        self._loop = loop or sum_loop()
        self._dense_sums = FlatParameters.filled(0, dense_shapes)
        self._row_sums = {table: RowSums(*shape) for table, shape in table_shapes.items()}
        self._denominator = denominator
        self._num_examples = 0
        self._loss_sum = 0.0

    def start(self) -> None:
        """Forget the round before."""
        self._num_examples = 0
        self._loss_sum = 0.0
        self._dense_sums.flat.fill(0)
        for rows in self._row_sums.values():
            self._loop.forget_rows(rows)

    def add(self, update: ClientUpdate) -> None:
        """Take one client's update into the sums; it can be forgotten afterwards."""
        weight = update.num_examples
        if self._dense_sums:
            dense = FlatParameters.of(update.dense, self._dense_sums.shapes)
            self._loop.add(self._dense_sums.flat, dense.flat, weight)
        for table, sums in self._row_sums.items():
            rows = update.tables[table]
            self._loop.add_rows(sums, rows.ids, rows.values, weight)
        self._num_examples += update.num_examples
        self._loss_sum += update.num_examples * update.mean_loss

    def mean(self) -> AggregatedUpdate:
        """ḡ over everything added since `start`; `MeanUnusable` if it, or its square, is not finite."""
        if not self._num_examples:
            raise ValueError("no update was added, so there is nothing to average")
        largest = [self._loop.divide(self._dense_sums.flat, self._num_examples)]
        examples = None if self._denominator == "holders" else self._num_examples
        tables = {}
        for table, rows in self._row_sums.items():
            largest.append(self._loop.divide_rows(rows, examples))
            tables[table] = AggregatedRows(rows.touched[: rows.num_touched], rows.sums[: rows.num_touched])
            # Now rather than when the next round starts: what is reset is still in the processor's cache.
            self._loop.forget_rows(rows)
        # numpy's max, because Python's loses a NaN
        reached = float(np.max(largest))
        if not reached <= MAX_MEAN:
            raise MeanUnusable(
                f"the mean of the updates reaches {reached:g}, and the server can take up to {MAX_MEAN:g}; "
                "lower server.max_change"
            )
        return AggregatedUpdate(
            self._dense_sums, tables, self._num_examples, self._loss_sum / self._num_examples
        )
