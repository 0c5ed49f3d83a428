"""What is done to a message's weights before they are encoded: one transform per file.

A client applies the plan's transforms to its update, in their order; the server applies its own to the slices it sends.
Adding one is a file here and a line in `TRANSFORMS`; for the native client, a file of the same name in
`ondevice/native/client/transforms`, with its lines in `transforms.h` and in the client's `build.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ondevice.client.transforms.clip import Clip
from ondevice.client.transforms.int8 import Int8
from ondevice.client.transforms.precision import Precision
from ondevice.client.transforms.top_k import TopK
from ondevice.client.transforms.transform import Transform, TransformView
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.messages.packed_weights import Weight

__all__ = ["TRANSFORMS", "Transform", "TransformView", "remember", "transformed", "transforms_of"]

TRANSFORMS: dict[str, Callable[..., Transform]] = {
    "precision": Precision,
    "clip": Clip,
    "int8": Int8,
    "top_k": TopK,
}


def transforms_of(choices: Sequence[Choice]) -> list[Transform]:
    """In their order; one that is not known here is told by name."""
    return [chosen(TRANSFORMS, choice, "transform") for choice in choices]


def remember(choices: Sequence[Choice]) -> bool:
    """Whether they need a client's memory."""
    return any(transform.remembers for transform in transforms_of(choices))


def transformed(
    weights: Mapping[str, Weight], choices: Sequence[Choice], view: TransformView | None = None
) -> Mapping[str, Weight]:
    """One transform after the other."""
    view = TransformView() if view is None else view
    for transform in transforms_of(choices):
        weights = transform.apply(weights, view)
    return weights
