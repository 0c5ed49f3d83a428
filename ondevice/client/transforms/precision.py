"""Half the bytes: weights as fp16 or bf16; whoever reads them has float32 again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ondevice.contract.safetensors_file import Bfloat16, Tensor
from ondevice.contract.wire import WireError

FORMATS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Precision:
    """Rounded to nearest, ties to even."""

    format: str = "fp32"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format is {self.format!r}; expected one of {', '.join(FORMATS)}")

    def apply(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self.format == "fp32":
            return weights
        return {name: self._narrowed(name, values) for name, values in weights.items()}

    def _narrowed(self, name: str, values: Tensor) -> Tensor:
        if isinstance(values, Bfloat16) or values.dtype != np.float32:
            raise ValueError(f"{name} was narrowed before; expected precision to be the last transform, once")
        if self.format == "bf16":
            return Bfloat16.from_float32(values)
        largest = float(np.abs(values).max(initial=0.0))
        if largest > float(np.finfo(np.float16).max):
            raise WireError(f"{name} holds {largest:g}, beyond fp16's 65504; send it as bf16 or fp32")
        return values.astype(np.float16)
