"""The largest entries of every dense difference alone; what is not sent is remembered, and added the next time.

Rows of tables go as they are: a client sends few of them already, and others every time.
Without its memory (error feedback) a client would never send what is small but always there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ondevice.client.transforms.transform import TransformView, finite_float32, still_float32
from ondevice.contract.messages.packed_weights import Largest, Weight
from ondevice.contract.vocabulary import FloatArray

_ORDER = "top_k to come before precision and int8, once"
_MOST_ENTRIES = 1 << 31
"""Positions are int32."""


@dataclass(frozen=True)
class TopK:
    """Of every tensor by itself, rounded up; among equals the first ones."""

    remembers: ClassVar[bool] = True

    fraction: float

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is {self.fraction}; expected more than 0 and at most 1")

    def apply(self, weights: Mapping[str, Weight], view: TransformView) -> Mapping[str, Weight]:
        chosen = dict(weights)
        for name, weight in weights.items():
            if name.startswith("dense."):
                values = finite_float32(name, still_float32(name, weight, _ORDER))
                chosen[name] = self._largest(name, values, view.memory)
        return chosen

    def _largest(self, name: str, values: FloatArray, memory: dict[str, FloatArray]) -> Largest:
        if values.size >= _MOST_ENTRIES:
            raise ValueError(f"{name} has {values.size} entries; top_k takes less than 2^31: use int8")
        key = f"top_k.{name}"
        unsent = memory.get(key, np.float32(0))
        if np.shape(unsent) not in ((), values.shape):
            raise ValueError(
                f"{name} is {list(values.shape)}, but the client remembers {list(np.shape(unsent))} of it; "
                "expected the memory of this model"
            )
        total = finite_float32(name, values + unsent)
        positions = largest_positions(total.reshape(-1), math.ceil(self.fraction * values.size))
        sent = total.reshape(-1)[positions]
        total.reshape(-1)[positions] = 0
        memory[key] = total
        return Largest(positions, sent)


def largest_positions(values: FloatArray, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Of the `count` largest |values|, sorted."""
    magnitudes = np.abs(values)
    least = np.partition(magnitudes, len(values) - count)[len(values) - count] if count else np.inf
    above = np.flatnonzero(magnitudes > least)
    equal = np.flatnonzero(magnitudes == least)[: count - len(above)]
    return np.sort(np.concatenate([above, equal])).astype(np.int32)
