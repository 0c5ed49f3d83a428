"""A network of one's own: inverted residual blocks (MobileNetV2) for small grey images.  Nothing in it knows this project.

fedss export --model examples/own_network.py:build --model-arg depth=7 --image-size 32 --channels 1 --out step
"""

from __future__ import annotations

from torch import Tensor, nn


class Block(nn.Module):
    """Expand by 1x1, filter every channel by 3x3, project by 1x1; the input is added where sizes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = nn.Sequential(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.adds_input = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds_input else y


def build(width: int = 16, depth: int = 7, expansion: int = 4) -> nn.Module:
    """Grey images [b, 1, 32, 32] -> features [b, 32 * width].

    Every other block halves the sides and doubles the channels.
    """
    blocks: list[nn.Module] = []
    channels = width
    for number in range(depth):
        stride = 2 if number % 2 else 1
        blocks.append(Block(channels, channels * stride, stride, expansion))
        channels *= stride
    stem = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    # Where a stroke lies is what tells characters apart, so the map is not averaged.
    return nn.Sequential(stem, nn.Sequential(*blocks), nn.Flatten())
