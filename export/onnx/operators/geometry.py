"""The sizes of a convolution over images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import FloatArray

Pair = tuple[int, int]
"""(height, width)"""


@dataclass(frozen=True)
class Geometry:
    batch: int
    in_channels: int
    out_channels: int
    groups: int
    image: Pair
    output: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)

    @property
    def pixels(self) -> int:
        return self.image[0] * self.image[1]

    @property
    def output_pixels(self) -> int:
        return self.output[0] * self.output[1]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def depthwise(self) -> bool:
        return self.groups == self.in_channels == self.out_channels and self.groups > 1

    @property
    def pointwise(self) -> bool:
        return self.groups == 1 and self.kernel == self.stride == (1, 1) and self.padding == (0, 0)

    @property
    def reach(self) -> Pair:
        """How many rows and columns a window spans."""
        height, width = (self.dilation[axis] * (self.kernel[axis] - 1) + 1 for axis in (0, 1))
        return height, width

    @property
    def uncovered(self) -> Pair:
        """Rows and columns of the padded input, at its end, that no window reaches because of the stride."""
        height, width = (
            self.image[axis]
            + 2 * self.padding[axis]
            - self.stride[axis] * (self.output[axis] - 1)
            - self.reach[axis]
            for axis in (0, 1)
        )
        return height, width


def tap_places(g: Geometry) -> FloatArray:
    """[taps, H·W, Ho·Wo], 1 where the tap connects the input pixel with the output pixel."""
    places = np.zeros((*g.kernel, *g.image, *g.output), np.float32)
    for i, j, row, column in np.ndindex(*g.kernel, *g.output):
        y = row * g.stride[0] + i * g.dilation[0] - g.padding[0]
        x = column * g.stride[1] + j * g.dilation[1] - g.padding[1]
        if 0 <= y < g.image[0] and 0 <= x < g.image[1]:
            places[i, j, y, x, row, column] = 1
    return places.reshape(g.taps, g.pixels, g.output_pixels)
