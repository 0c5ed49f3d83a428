"""What a weighting sees, and what it gives: the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ondevice.contract.vocabulary import FloatArray, IntArray, RoundPlan


@dataclass(frozen=True)
class WeightingView:
    """What a client lets its weighting see, once it has its slice."""

    plan: RoundPlan
    labels: IntArray
    """Of all its examples: global row ids."""
    ids: Mapping[str, IntArray]
    """The rows of the slice, by table."""
    sides: Mapping[str, FloatArray]
    """The slice's side arrays, an entry per row."""
    private_seed: int = field(repr=False)


class Weighting(Protocol):
    def examples(self, plan: RoundPlan, labels: IntArray, private_seed: int) -> IntArray:
        """Positions of the examples that this round trains on; one may come more than once."""
        ...

    def weights(self, view: WeightingView, batch: IntArray) -> FloatArray:
        """What each example of a batch weighs, [B] float32; they add up to 1, so that the loss is a mean."""
        ...
