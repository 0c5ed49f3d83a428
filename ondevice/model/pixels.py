"""Raw pixels as a network wants them: uint8 in, normalised inside the step, so that no client knows how.

    (x / 255 − mean) / deviation = x · scale − shift,   scale = 1 / (255 deviation),  shift = mean / deviation

Mean and deviation are constants of the artifact: weights that were trained elsewhere see what they were trained on.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.contract.vocabulary import IMAGES, StepSpec


class Pixels(nn.Module):
    """uint8 [b, C, H, W] -> about −1..1, in the type of the weights."""

    scale: Tensor
    shift: Tensor

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        channels = spec.image_shape[0]
        mean, deviation = (
            np.broadcast_to(np.array(values, np.float64), channels)
            for values in (spec.pixel_mean, spec.pixel_deviation)
        )
        for name, values in (("scale", 1 / (255 * deviation)), ("shift", mean / deviation)):
            constant = torch.from_numpy(values.astype(np.float32)).reshape(channels, 1, 1)
            self.register_buffer(name, constant, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images.to(self.scale.dtype) * self.scale - self.shift


def image_inputs(spec: StepSpec) -> tuple[ArraySpec, ...]:
    """What an extractor of images takes."""
    return (ArraySpec(IMAGES, "feature", (EXAMPLES, *spec.image_shape), "uint8"),)
