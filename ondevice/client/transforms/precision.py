"""Half the bytes: weights as fp16 or bf16; whoever reads them has float32 again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ondevice.client.transforms.transform import TransformView, still_float32
from ondevice.contract.messages.packed_weights import Largest, Weight
from ondevice.contract.safetensors_file import Bfloat16, Tensor
from ondevice.contract.wire import WireError

_ORDER = "precision to be the last transform, once"
FORMATS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Precision:
    """Rounded to nearest, ties to even."""

    remembers: ClassVar[bool] = False

    format: str = "fp32"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format is {self.format!r}; expected one of {', '.join(FORMATS)}")

    def apply(self, weights: Mapping[str, Weight], view: TransformView) -> Mapping[str, Weight]:  # noqa: ARG002
        if self.format == "fp32":
            return weights
        narrowed: dict[str, Weight] = {}
        for name, weight in weights.items():
            if isinstance(weight, Largest):
                narrowed[name] = replace(weight, values=self._narrowed(name, weight.values))
            else:
                narrowed[name] = self._narrowed(name, weight)
        return narrowed

    def _narrowed(self, name: str, weight: Weight) -> Tensor:
        values = still_float32(name, weight, _ORDER)
        if self.format == "bf16":
            return Bfloat16.from_float32(values)
        largest = float(np.abs(values).max(initial=0.0))
        if largest > float(np.finfo(np.float16).max):
            raise WireError(f"{name} holds {largest:g}, beyond fp16's 65504; send it as bf16 or fp32")
        return values.astype(np.float16)
