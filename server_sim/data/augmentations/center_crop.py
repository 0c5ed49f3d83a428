"""No augmentation: the largest square in the middle, the same in every round.  What clients on devices can be given too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ondevice.contract.portable_random import PortableRandom
from server_sim.data.augmentations.augmentation import Box, central, check_size


@dataclass(frozen=True)
class CenterCrop:
    is_random: ClassVar[bool] = False
    size: int = 224

    def __post_init__(self) -> None:
        check_size("size", self.size)

    def drawn(self, width: int, height: int, random: PortableRandom) -> Box:  # noqa: ARG002 - nothing is left to chance
        return self.tested(width, height)

    def tested(self, width: int, height: int) -> Box:
        side = min(width, height)
        return central(width, height, side / width, side / height)
