"""What is done to a message's weights before they are encoded: one transform per file.

A client applies the plan's transforms to its update, in their order; the server applies its own to the slices it sends.
Adding one is a file here and a line in `TRANSFORMS`; for the native client, a file of the same name in
`ondevice/native/client/transforms`, with its lines in `transforms.h` and in the client's `build.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ondevice.client.transforms.clip import Clip
from ondevice.client.transforms.precision import Precision
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.safetensors_file import Tensor


class Transform(Protocol):
    def apply(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights of a message by name -> what travels under the same names."""
        ...


TRANSFORMS: dict[str, Callable[..., Transform]] = {"precision": Precision, "clip": Clip}


def transforms_of(choices: Sequence[Choice]) -> list[Transform]:
    """In their order; one that is not known here is told by name."""
    return [chosen(TRANSFORMS, choice, "transform") for choice in choices]


def transformed(weights: Mapping[str, Tensor], choices: Sequence[Choice]) -> Mapping[str, Tensor]:
    """One transform after the other."""
    for transform in transforms_of(choices):
        weights = transform.apply(weights)
    return weights
