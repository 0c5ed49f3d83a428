"""How images of any size become images of one size, anew in every round: one augmentation per file.

An augmentation is a frozen dataclass whose fields are its settings.  Adding one is a file here and a line below.
"""

from __future__ import annotations

from collections.abc import Callable

from server_sim.data.augmentations.augmentation import Augmentation, Box
from server_sim.data.augmentations.center_crop import CenterCrop
from server_sim.data.augmentations.random_crop import RandomCrop
from server_sim.data.augmentations.scale_and_aspect import ScaleAndAspect

__all__ = ["AUGMENTATIONS", "Augmentation", "Box"]

AUGMENTATIONS: dict[str, Callable[..., Augmentation]] = {
    "random_crop": RandomCrop,
    "scale_and_aspect": ScaleAndAspect,
    "center_crop": CenterCrop,
}
