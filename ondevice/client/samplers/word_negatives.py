"""For a table of words that is read and predicted from: all of a client's words, and others drawn uniformly.

P_k is every word that the client reads or predicts, so that one slice has the rows of its inputs and of its labels, each
once.  Others are drawn and corrected as in `uniform_negatives`.  The special tokens are always asked for, since texts hold
them, and no target competes with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.client.samplers.sampling import SamplingView, columns_sample, own_words
from ondevice.client.samplers.uniform_negatives import with_negatives
from ondevice.contract.tokens import NUM_SPECIAL
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, RowSample


@dataclass(frozen=True)
class WordNegatives:
    """P_k, the special tokens, and `num_negatives` others."""

    num_negatives: int

    def __post_init__(self) -> None:
        if self.num_negatives < 0:
            raise ValueError(f"num_negatives is {self.num_negatives}; expected 0 or more")

    def draw(self, view: SamplingView) -> RowSample:
        num_rows = view.plan.table_sizes[COLUMNS]
        positives = own_words(view, num_rows)
        ids, is_positive, log_count = with_negatives(view, positives, self.num_negatives, num_rows)
        adjust = np.where(is_positive, 0.0, -log_count)
        adjust[ids < NUM_SPECIAL] = EXCLUDED
        return columns_sample(ids, adjust.astype(np.float32))

    def widest(self, num_positives: int, num_rows: int) -> int:
        return min(num_positives + NUM_SPECIAL + self.num_negatives, num_rows)
