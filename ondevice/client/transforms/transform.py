"""What a transform sees, and what it gives: the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from ondevice.contract.messages.packed_weights import Int8Rows, Largest, Weight
from ondevice.contract.safetensors_file import Bfloat16
from ondevice.contract.vocabulary import FloatArray


@dataclass(frozen=True)
class TransformView:
    """What a client lets its transforms see beside the weights.  The server, which sends models, shows them nothing."""

    round_index: int = 0
    private_seed: int = field(default=0, repr=False)
    memory: dict[str, FloatArray] = field(default_factory=dict)
    """What the client's transforms left the last time it took part; what they leave now takes its place."""


class Transform(Protocol):
    remembers: ClassVar[bool]
    """Whether it uses `TransformView.memory`."""

    def apply(self, weights: Mapping[str, Weight], view: TransformView) -> Mapping[str, Weight]:
        """The weights of a message by name -> what travels under the same names."""
        ...


def still_float32(name: str, weight: Weight, expected: str) -> FloatArray:
    """A weight that no transform has narrowed; `expected` says in which order transforms work."""
    if isinstance(weight, (Bfloat16, Int8Rows, Largest)) or weight.dtype != np.float32:
        raise ValueError(f"{name} was narrowed before; expected {expected}")
    return weight


def finite_float32(name: str, values: FloatArray) -> FloatArray:
    """What is to be scaled or compared must be numbers."""
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity: local training diverged; use a lower learning rate")
    return values
