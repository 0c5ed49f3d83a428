"""What follows from whether a network's weights were trained somewhere: BatchNorm's policy, and how pixels are normalised.

Trained weights come with statistics that mean something, and with images that they were trained on: both are kept.  Fresh
ones have neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ondevice.contract.vocabulary import BatchNormPolicy, StepSpec
from ondevice.model.extractors.foreign import GIVEN, OBJECT, trained_pixels

_PRETRAINED = ("pretrained", "weights", "checkpoint_path")
"""Keyword arguments by which timm's and torchvision's builders give trained weights."""


def completed(spec: StepSpec, has_weights: bool, batch_norm: BatchNormPolicy | None) -> StepSpec:
    """The spec of a network from elsewhere, with what was not said filled in; ours is left as it is."""
    source, colon, name = spec.architecture.rpartition(":")
    if not colon:
        return spec
    trained = has_weights or _comes_trained(spec.architecture, spec.architecture_arguments)
    policy: BatchNormPolicy = batch_norm or ("frozen" if trained else "group")
    spec = replace(spec, batch_norm=policy)
    says_nothing_of_pixels = (spec.pixel_mean, spec.pixel_deviation) == ((0.5,), (0.5,))
    if trained and says_nothing_of_pixels and source != OBJECT and spec.image_shape[0] == 3:
        pixels = trained_pixels(source, name)
        if pixels is not None:
            return replace(spec, pixel_mean=pixels[0], pixel_deviation=pixels[1])
    return spec


def _comes_trained(architecture: str, arguments: Mapping[str, Any]) -> bool:
    if architecture in GIVEN:
        from ondevice.model.batch_norm import has_statistics

        return has_statistics(GIVEN[architecture])
    return any(arguments.get(name) for name in _PRETRAINED)
