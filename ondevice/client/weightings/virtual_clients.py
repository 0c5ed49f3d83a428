"""FedVC (Hsu, Qi and Brown 2020, section 5.3): every client trains on the same number of examples, drawn anew every round.

A large client gives a random part of its examples, without replacement; a small one repeats its own, drawn with
replacement.  All clients then claim the same number, so the server's mean over examples is the plain mean over clients.
When a client holds exactly that many, it trains on each of them once, as with `uniform`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.client.weightings.weighting import WeightingView
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import FloatArray, IntArray, RoundPlan


@dataclass(frozen=True)
class VirtualClients:
    """N_VC examples, 1/B each."""

    num_examples: int

    def __post_init__(self) -> None:
        if self.num_examples < 1:
            raise ValueError(f"num_examples is {self.num_examples}; expected 1 or more")

    def examples(self, plan: RoundPlan, labels: IntArray, private_seed: int) -> IntArray:
        return drawn_examples(self.num_examples, plan, labels, private_seed)

    def weights(self, view: WeightingView, batch: IntArray) -> FloatArray:  # noqa: ARG002
        return np.full(len(batch), np.float32(1 / len(batch)))


def drawn_examples(count: int, plan: RoundPlan, labels: IntArray, private_seed: int) -> IntArray:
    """Positions of `count` examples, in order where they are distinct."""
    if not len(labels):
        raise ValueError("the client holds no examples, so there is nothing to draw from")
    random = PortableRandom(private_seed, plan.round_index, Purpose.EXAMPLES)
    if len(labels) >= count:
        return random.subset(count, len(labels))
    return np.array([random.below(len(labels)) for _ in range(count)], np.int64)
