"""FedIR (Hsu, Qi and Brown 2020, section 5.2): examples weigh p(y) / q_k(y), so that a client's loss estimates everybody's.

p(y) is the class's share in the distribution that the model is for; it comes with the slice, a side array over the
rows.  q_k(y) is its share among the client's own examples, which the server never learns.  The weights of a batch are
divided by their sum (Eq. 4), which leaves the learning rate what it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.client.weightings.virtual_clients import drawn_examples
from ondevice.client.weightings.weighting import WeightingView
from ondevice.contract.vocabulary import COLUMNS, FloatArray, IntArray, RoundPlan

CLASS_SHARE = "class_share"
"""The side array: p(y) of every row."""


@dataclass(frozen=True)
class Importance:
    """p(y) / q_k(y), self-normalised in each batch."""

    num_examples: int
    """As virtual clients draw them; 0 takes every example once."""

    def __post_init__(self) -> None:
        if self.num_examples < 0:
            raise ValueError(f"num_examples is {self.num_examples}; expected 0 or more")

    def examples(self, plan: RoundPlan, labels: IntArray, private_seed: int) -> IntArray:
        if not self.num_examples:
            return np.arange(len(labels))
        return drawn_examples(self.num_examples, plan, labels, private_seed)

    def weights(self, view: WeightingView, batch: IntArray) -> FloatArray:
        if CLASS_SHARE not in view.sides:
            raise ValueError(
                f"the slice has no side array {CLASS_SHARE!r}, which importance weights are made of"
            )
        shares, labels = view.sides[CLASS_SHARE], view.labels[batch]
        # The draw may have left out classes that the client holds, but none of the batch.
        target = shares[np.searchsorted(view.ids[COLUMNS], labels)].astype(np.float64)
        # q_k up to a factor, which the sum takes out again.
        ratio = target / np.bincount(view.labels)[labels]
        # From the first to the last, as the native client adds: numpy's own sum takes another order.
        total = np.add.accumulate(ratio)[-1]
        if target.min() < 0 or not 0 < total < np.inf:
            raise ValueError(
                f"the entries of {CLASS_SHARE} for a batch reach from {target.min():g} to {target.max():g}; "
                "expected shares of classes, 0 or more and not all 0"
            )
        weights: FloatArray = (ratio / total).astype(np.float32)
        return weights
