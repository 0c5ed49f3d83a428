"""MobileNetV3 (Howard et al. 2019) with GroupNorm, up to the embedding: the φ of the FedSS paper (A.2).

GroupNorm instead of BatchNorm makes training stable on clients that hold few classes, makes every example independent of
its batch (so that micro-batches are exact), and makes the backward pass exportable.  The pooled features go straight to
the embedding, as the paper replaces the 1280-dimensional embedding by a 64-dimensional one: 3,033,456 parameters (Large).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import ImageExtractor

NUM_GROUPS = 8


class BlockRow(NamedTuple):
    """One row of the paper's Table 1 or 2."""

    kernel: int
    expanded: int
    out: int
    squeeze_excite: bool
    activation: str
    stride: int


LARGE = (
    BlockRow(3, 16, 16, False, "relu", 1),
    BlockRow(3, 64, 24, False, "relu", 2),
    BlockRow(3, 72, 24, False, "relu", 1),
    BlockRow(5, 72, 40, True, "relu", 2),
    BlockRow(5, 120, 40, True, "relu", 1),
    BlockRow(5, 120, 40, True, "relu", 1),
    BlockRow(3, 240, 80, False, "hardswish", 2),
    BlockRow(3, 200, 80, False, "hardswish", 1),
    BlockRow(3, 184, 80, False, "hardswish", 1),
    BlockRow(3, 184, 80, False, "hardswish", 1),
    BlockRow(3, 480, 112, True, "hardswish", 1),
    BlockRow(3, 672, 112, True, "hardswish", 1),
    BlockRow(5, 672, 160, True, "hardswish", 2),
    BlockRow(5, 960, 160, True, "hardswish", 1),
    BlockRow(5, 960, 160, True, "hardswish", 1),
)
SMALL = (
    BlockRow(3, 16, 16, True, "relu", 2),
    BlockRow(3, 72, 24, False, "relu", 2),
    BlockRow(3, 88, 24, False, "relu", 1),
    BlockRow(5, 96, 40, True, "hardswish", 2),
    BlockRow(5, 240, 40, True, "hardswish", 1),
    BlockRow(5, 240, 40, True, "hardswish", 1),
    BlockRow(5, 120, 48, True, "hardswish", 1),
    BlockRow(5, 144, 48, True, "hardswish", 1),
    BlockRow(5, 288, 96, True, "hardswish", 2),
    BlockRow(5, 576, 96, True, "hardswish", 1),
    BlockRow(5, 576, 96, True, "hardswish", 1),
)


class MobileNetV3(ImageExtractor):
    """The rows of Large or Small between the stem and the embedding."""

    def __init__(self, spec: StepSpec, rows: tuple[BlockRow, ...]) -> None:
        super().__init__(spec)
        self.stem = ConvNorm(spec.image_shape[0], 16, kernel=3, stride=2, activation="hardswish")
        blocks = []
        channels = 16
        for row in rows:
            blocks.append(InvertedResidual(channels, row))
            channels = row.out
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(channels, 6 * channels, kernel=1, activation="hardswish")
        self.embedding = nn.Linear(6 * channels, spec.embedding_dim)

    def embed(self, images: Tensor) -> Tensor:
        features: Tensor = self.last(self.blocks(self.stem(images)))
        embeddings: Tensor = self.embedding(features.mean((2, 3)))
        return embeddings


def large(spec: StepSpec) -> MobileNetV3:
    return MobileNetV3(spec, LARGE)


def small(spec: StepSpec) -> MobileNetV3:
    return MobileNetV3(spec, SMALL)


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, squeeze-and-excite, project; with a shortcut where the shape allows."""

    def __init__(self, in_channels: int, row: BlockRow) -> None:
        super().__init__()
        self.shortcut = row.stride == 1 and in_channels == row.out
        self.expand = (
            ConvNorm(in_channels, row.expanded, kernel=1, activation=row.activation)
            if row.expanded != in_channels
            else nn.Identity()
        )
        self.depthwise = ConvNorm(
            row.expanded, row.expanded, row.kernel, row.stride, groups=row.expanded, activation=row.activation
        )
        self.squeeze_excite = SqueezeExcite(row.expanded) if row.squeeze_excite else nn.Identity()
        self.project = ConvNorm(row.expanded, row.out, kernel=1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.project(self.squeeze_excite(self.depthwise(self.expand(inputs))))
        return inputs + outputs if self.shortcut else outputs


class ConvNorm(nn.Module):
    """Convolution without bias, GroupNorm, activation."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        )
        self.norm = nn.GroupNorm(NUM_GROUPS, out_channels)
        self.activation = activation

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.norm(self.conv(inputs))
        if self.activation == "relu":
            return F.relu(outputs)
        if self.activation == "hardswish":
            return F.hardswish(outputs)
        if self.activation == "relu6":
            return F.relu6(outputs)
        return outputs


class SqueezeExcite(nn.Module):
    """Scales every channel by a gate computed from the pooled channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = divisible_by_8(channels / 4)
        self.reduce = nn.Linear(channels, squeezed)
        self.restore = nn.Linear(squeezed, channels)

    def forward(self, inputs: Tensor) -> Tensor:
        gate = F.hardsigmoid(self.restore(F.relu(self.reduce(inputs.mean((2, 3))))))
        return inputs * gate[:, :, None, None]


def divisible_by_8(channels: float) -> int:
    """The nearest multiple of 8, but never more than 10 % below (the rule of the MobileNet authors)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
