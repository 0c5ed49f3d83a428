"""What a sampler sees, and what it gives: the protocol, and the arithmetic that samplers share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ondevice.contract.link import Ask
from ondevice.contract.vocabulary import COLUMNS, FloatArray, IntArray, RoundPlan, RowSample

ADJUST = "adjust"
"""The side array that is added to the logits: the one vector that tells the losses apart."""


@dataclass(frozen=True)
class SamplingView:
    """What a client lets its sampler see.  None of it leaves the device but by the sampler's own questions."""

    plan: RoundPlan
    labels: IntArray
    private_seed: int = field(repr=False)
    ask: Ask = field(repr=False)
    """For samplers whose draw takes more than one exchange with the server."""


class Sampler(Protocol):
    """Draws the rows of one client and round; the same view gives the same sample."""

    def draw(self, view: SamplingView) -> RowSample: ...

    def widest(self, num_positives: int, num_rows: int) -> int:
        """The most rows that a client with so many classes can ask for."""
        ...


def positives_of(labels: IntArray, num_rows: int) -> IntArray:
    """P_k: the classes that the client holds, sorted."""
    positives = np.unique(labels)
    if not positives.size:
        raise ValueError("the client holds no examples, so it has no classes to ask for")
    if positives[0] < 0 or positives[-1] >= num_rows:
        raise ValueError(f"labels reach from {positives[0]} to {positives[-1]}; expected 0 to {num_rows - 1}")
    return positives


def columns_sample(ids: IntArray, adjust: FloatArray) -> RowSample:
    """A draw over the classifier's table."""
    return RowSample({COLUMNS: ids}, {ADJUST: adjust})
