"""The noise of one batch: what dropout and its like decide by, drawn anew for every example of every SGD step.

A stream per (private seed, round, SGD step) gives example after example all numbers that the step's noise inputs take, in
the signature's order.  So how a batch is split into micro-batches changes nothing, the C++ client draws the same bytes, and
a round that is held again repeats them.
"""

from __future__ import annotations

import math

import numpy as np

from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.step_signature import EXAMPLES, Arrays, StepSignature


class BatchNoise:
    """`number` counts the SGD steps of the round from 0."""

    def __init__(self, signature: StepSignature, seed: int, round_index: int, number: int) -> None:
        self._inputs = signature.noise
        self._sizes = [math.prod(spec.sizes({EXAMPLES: 1})) for spec in self._inputs]
        self._random = PortableRandom(seed, round_index, Purpose.NOISE + number)

    def next(self, examples: int) -> Arrays:
        """Of the next so many examples of the batch, by the inputs' names."""
        if not self._inputs:
            return {}
        numbers = self._random.noise(examples * sum(self._sizes)).reshape(examples, -1)
        pieces = np.split(numbers, np.cumsum(self._sizes[:-1]), axis=1)
        return {
            spec.name: np.ascontiguousarray(piece).reshape(spec.sizes({EXAMPLES: examples}))
            for spec, piece in zip(self._inputs, pieces, strict=True)
        }
