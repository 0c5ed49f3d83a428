"""MobileNetV2 (Sandler et al. 2018) with GroupNorm, up to the embedding: the φ of the FedVC and FedIR paper (section 6.5).

The paper puts "a 64-dimensional bottleneck layer between the 1280-dimensional features and the softmax classifier", and
GroupNorm in the place of BatchNorm: 2,305,856 parameters.  That is for Landmarks; for iNaturalist the features go to the
classifier as they are, which an embedding of 1280 entries asks for.  The blocks are MobileNetV3's, without
squeeze-and-excite and with ReLU6.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import ImageExtractor
from ondevice.model.extractors.mobilenet_v3 import BlockRow, ConvNorm, InvertedResidual

STEM, LAST = 32, 1280


class Stage(NamedTuple):
    """One row of the paper's Table 2."""

    expansion: int
    out: int
    blocks: int
    stride: int
    """Of the first block."""


STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


class MobileNetV2(ImageExtractor):
    """The blocks between the stem and the 1280 features, and the bottleneck behind them, if it is one."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        self.stem = ConvNorm(spec.image_shape[0], STEM, kernel=3, stride=2, activation="relu6")
        blocks = []
        channels = STEM
        for stage in STAGES:
            for number in range(stage.blocks):
                stride = stage.stride if number == 0 else 1
                row = BlockRow(3, stage.expansion * channels, stage.out, False, "relu6", stride)
                blocks.append(InvertedResidual(channels, row))
                channels = stage.out
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(channels, LAST, kernel=1, activation="relu6")
        narrower = spec.embedding_dim != LAST
        self.embedding = nn.Linear(LAST, spec.embedding_dim) if narrower else nn.Identity()

    def embed(self, images: Tensor) -> Tensor:
        features: Tensor = self.last(self.blocks(self.stem(images)))
        embeddings: Tensor = self.embedding(features.mean((2, 3)))
        return embeddings
