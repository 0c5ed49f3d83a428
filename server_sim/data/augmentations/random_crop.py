"""Images are resized to a square, from which a smaller one is cut at random (FedSS, A.2: from 256 x 256 to 224 x 224).

The square is never made whole: the part of the original that would fill the crop is scaled to it at once, which gives the
same pixels.  The test sees the crop in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ondevice.contract.portable_random import PortableRandom
from server_sim.data.augmentations.augmentation import Box, central, check_size


@dataclass(frozen=True)
class RandomCrop:
    is_random: ClassVar[bool] = True
    resized: int = 256
    """Height and width that images are brought to, whatever their shape."""
    size: int = 224

    def __post_init__(self) -> None:
        check_size("size", self.size)
        if self.resized < self.size:
            raise ValueError(f"resized is {self.resized}; expected {self.size} (size) or more")

    def drawn(self, width: int, height: int, random: PortableRandom) -> Box:
        places = self.resized - self.size + 1
        x, y = random.below(places), random.below(places)
        scale_x, scale_y = width / self.resized, height / self.resized
        return Box(x * scale_x, y * scale_y, (x + self.size) * scale_x, (y + self.size) * scale_y)

    def tested(self, width: int, height: int) -> Box:
        return central(width, height, self.size / self.resized, self.size / self.resized)
