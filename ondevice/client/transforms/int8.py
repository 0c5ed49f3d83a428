"""A quarter of the bytes: weights as int8 with a scale per row, rounded up or down by chance so that the mean is right.

A row's largest entry is 127 of its scale.  An entry between two whole numbers becomes the upper one with the probability of
its distance from the lower one: its expectation is the entry itself, and over the clients of a round the errors average out
instead of adding up.  Chance is the client's own portable generator: the same bytes in C++, and in a round held again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ondevice.client.transforms.transform import TransformView, finite_float32, still_float32
from ondevice.contract.messages.packed_weights import Int8Rows, Largest, Weight, num_scales
from ondevice.contract.portable_random import PortableRandom, Purpose

_ORDER = "int8 to be the last transform, once"
_LARGEST = np.float32(127)


@dataclass(frozen=True)
class Int8:
    """Per row of what has two dimensions or more; anything else has one scale."""

    remembers: ClassVar[bool] = False

    def apply(self, weights: Mapping[str, Weight], view: TransformView) -> Mapping[str, Weight]:
        random = PortableRandom(view.private_seed, view.round_index, Purpose.ROUNDING)
        narrowed: dict[str, Weight] = {}
        for name, weight in weights.items():
            if isinstance(weight, Largest):
                narrowed[name] = replace(weight, values=_narrowed(name, weight.values, random))
            else:
                narrowed[name] = _narrowed(name, weight, random)
        return narrowed


def _narrowed(name: str, weight: Weight, random: PortableRandom) -> Int8Rows:
    values = finite_float32(name, still_float32(name, weight, _ORDER))
    rows = values.reshape(num_scales(values.shape), -1)
    largest = np.abs(rows).max(axis=1, initial=0)
    scales = largest / _LARGEST
    # Rounded up: no quotient is beyond 127.  A float32 times 127 is exact in float64.
    too_small = scales.astype(np.float64) * 127 < largest
    scales = np.where(too_small, np.nextafter(scales, np.float32(np.inf)), scales)
    quotients = rows / np.where(scales > 0, scales, 1).astype(np.float64)[:, np.newaxis]
    below = np.floor(quotients)
    below += random.uniform(rows.size).reshape(rows.shape) < quotients - below
    return Int8Rows(below.astype(np.int8).reshape(values.shape), scales)
