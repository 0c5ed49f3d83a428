"""Full softmax (Eq. 2): every class of the federation, nothing to correct."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.client.samplers.sampling import SamplingView, columns_sample, positives_of
from ondevice.contract.vocabulary import COLUMNS, RowSample


@dataclass(frozen=True)
class AllRows:
    """The whole table."""

    def draw(self, view: SamplingView) -> RowSample:
        num_rows = view.plan.table_sizes[COLUMNS]
        positives_of(view.labels, num_rows)  # labels out of range are an error here as everywhere
        return columns_sample(np.arange(num_rows), np.zeros(num_rows, np.float32))

    def widest(self, num_positives: int, num_rows: int) -> int:  # noqa: ARG002 - every sampler is asked alike
        return num_rows
