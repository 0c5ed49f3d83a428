"""FedSS section 3.3: negatives drawn uniformly, without replacement, from the classes that a client does not hold.

The draw uses a seed that never leaves the device; the request is the sorted ids of S_k = P_k + N_k and nothing else.

The adjusted logit of Eq. 3-5 is o'_j = o_j − log(expected count of j in S_k).  A positive is always there: its expected
count is 1 and its adjustment 0.  Each of the n − |P_k| other classes is drawn with probability m / (n − |P_k|).  When every
class is sampled all adjustments are 0, and FedSS *is* full softmax.  NegOnly (Eq. 7) leaves the other positives out.

One request hides P_k among N_k.  It claims no more: over many rounds the ids that keep returning are the positives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondevice.client.samplers.sampling import SamplingView, columns_sample, positives_of
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, IntArray, RowSample


@dataclass(frozen=True)
class UniformNegatives:
    """P_k and `num_negatives` others."""

    num_negatives: int
    exclude_positives: bool = False
    """NegOnly: the other positives push nothing away."""

    def __post_init__(self) -> None:
        if self.num_negatives < 0:
            raise ValueError(f"num_negatives is {self.num_negatives}; expected 0 or more")

    def draw(self, view: SamplingView) -> RowSample:
        num_rows = view.plan.table_sizes[COLUMNS]
        positives = positives_of(view.labels, num_rows)
        ids, is_positive, log_count = with_negatives(view, positives, self.num_negatives, num_rows)
        adjust = np.where(is_positive, EXCLUDED if self.exclude_positives else 0.0, -log_count)
        return columns_sample(ids, adjust.astype(np.float32))

    def widest(self, num_positives: int, num_rows: int) -> int:
        return min(num_positives + self.num_negatives, num_rows)


def with_negatives(
    view: SamplingView, positives: IntArray, num_negatives: int, num_rows: int
) -> tuple[IntArray, npt.NDArray[np.bool_], float]:
    """S_k; which of it are positives; and the log expected count of every other class."""
    num_others = num_rows - len(positives)
    count = min(num_negatives, num_others)
    random = PortableRandom(view.private_seed, view.plan.round_index, Purpose.NEGATIVES)
    ids = np.concatenate([positives, draw_negatives(positives, count, num_rows, random)])
    order = np.argsort(ids)
    is_positive = (np.arange(len(ids)) < len(positives))[order]
    return ids[order], is_positive, float(np.log(count / num_others)) if count else 0.0


def draw_negatives(positives: IntArray, count: int, num_rows: int, random: PortableRandom) -> IntArray:
    """N_k: sorted, uniform without replacement from the classes that are not positives."""
    ranks = random.subset(count, num_rows - len(positives))
    # The r-th class that is not a positive is r plus the number of positives before it: positives[i] − i of the
    # other classes come before positive i.
    return ranks + np.searchsorted(positives - np.arange(len(positives)), ranks, side="right")
