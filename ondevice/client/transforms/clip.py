"""An update no longer than `norm`: all of it scaled down together, so that its direction stays.

One client's pull on the mean is bounded that way, whatever it computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ondevice.contract.safetensors_file import Bfloat16, Tensor

_BELOW = 1 - 2.0**-22
"""What rounding the factor and the products to float32 may add is taken off before: the bound holds, not nearly."""


@dataclass(frozen=True)
class Clip:
    """The L2 norm over all weights of a message, computed in float64."""

    norm: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise ValueError(f"norm is {self.norm}; expected a positive number")

    def apply(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        arrays = {}
        for name, values in weights.items():
            if isinstance(values, Bfloat16) or values.dtype != np.float32:
                raise ValueError(f"{name} was narrowed before; expected clip to come before precision")
            arrays[name] = values
        length = math.sqrt(
            sum(float(np.square(values, dtype=np.float64).sum()) for values in arrays.values())
        )
        if length <= self.norm:
            return arrays
        return {name: values * np.float32(_BELOW * self.norm / length) for name, values in arrays.items()}
