"""A part of random size and shape, scaled to the size that the network takes (Szegedy et al. 2015; FedVC, section 6.5).

The part's area is evenly distributed between 8 % and 100 % of the image's, its width over its height between 3/4 and 4/3.
Where ten drawn parts do not fit into the image, the largest that has an allowed shape is taken from its middle.  The test
sees the middle, 87.5 % of the shorter side, undistorted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ondevice.contract.portable_random import PortableRandom
from server_sim.data.augmentations.augmentation import Box, central, check_size

ATTEMPTS = 10


@dataclass(frozen=True)
class ScaleAndAspect:
    is_random: ClassVar[bool] = True
    size: int = 224
    least_area: float = 0.08
    """Of the image's."""
    most_elongated: float = 4 / 3
    """The largest width over height; the smallest is its inverse."""
    tested_fraction: float = 0.875
    """Of the shorter side."""

    def __post_init__(self) -> None:
        check_size("size", self.size)
        for name, least in (("least_area", 0.0), ("tested_fraction", 0.0)):
            value = getattr(self, name)
            if not least < value <= 1:
                raise ValueError(f"{name} is {value}; expected a fraction above 0, at most 1")
        if not 1 <= self.most_elongated < math.inf:
            raise ValueError(f"most_elongated is {self.most_elongated}; expected 1 or more")

    def drawn(self, width: int, height: int, random: PortableRandom) -> Box:
        narrowest = 1 / self.most_elongated
        for _ in range(ATTEMPTS):
            # No logarithm: of all that is done to floats here, only it and its like may round differently elsewhere.
            area_draw, shape_draw, x_draw, y_draw = random.uniform(4).tolist()
            area = width * height * (self.least_area + area_draw * (1 - self.least_area))
            shape = narrowest + shape_draw * (self.most_elongated - narrowest)
            box_width, box_height = math.sqrt(area * shape), math.sqrt(area / shape)
            if box_width <= width and box_height <= height:
                left, upper = x_draw * (width - box_width), y_draw * (height - box_height)
                return Box(left, upper, left + box_width, upper + box_height)
        box_width = min(width, height * self.most_elongated)
        box_height = min(height, width * self.most_elongated)
        return central(width, height, box_width / width, box_height / height)

    def tested(self, width: int, height: int) -> Box:
        side = self.tested_fraction * min(width, height)
        return central(width, height, side / width, side / height)
