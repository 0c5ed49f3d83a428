"""An update no longer than `norm`: all of it scaled down together, so that its direction stays.

One client's pull on the mean is bounded that way, whatever it computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ondevice.client.transforms.transform import TransformView, still_float32
from ondevice.contract.messages.packed_weights import Weight

_ORDER = "clip to come before precision, int8 and top_k"
_BELOW = 1 - 2.0**-22
"""What rounding the factor and the products to float32 may add is taken off before: the bound holds, not nearly."""


@dataclass(frozen=True)
class Clip:
    """The L2 norm over all weights of a message, computed in float64."""

    remembers: ClassVar[bool] = False

    norm: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise ValueError(f"norm is {self.norm}; expected a positive number")

    def apply(self, weights: Mapping[str, Weight], view: TransformView) -> Mapping[str, Weight]:  # noqa: ARG002
        arrays = {name: still_float32(name, values, _ORDER) for name, values in weights.items()}
        length = math.sqrt(
            sum(float(np.square(values, dtype=np.float64).sum()) for values in arrays.values())
        )
        if length <= self.norm:
            return arrays
        return {name: values * np.float32(_BELOW * self.norm / length) for name, values in arrays.items()}
