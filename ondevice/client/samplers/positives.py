"""PosOnly (Eq. 8): the classes that the client holds and no others, nothing to correct."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.client.samplers.sampling import SamplingView, columns_sample, positives_of
from ondevice.contract.vocabulary import COLUMNS, RowSample


@dataclass(frozen=True)
class Positives:
    """P_k alone."""

    def draw(self, view: SamplingView) -> RowSample:
        ids = positives_of(view.labels, view.plan.table_sizes[COLUMNS])
        return columns_sample(ids, np.zeros(len(ids), np.float32))

    def widest(self, num_positives: int, num_rows: int) -> int:  # noqa: ARG002 - every sampler is asked alike
        return num_positives
