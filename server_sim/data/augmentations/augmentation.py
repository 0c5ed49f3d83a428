"""What an augmentation is: which part of an image the network gets to see, scaled to the size that it takes."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

from ondevice.contract.portable_random import PortableRandom


class Box(NamedTuple):
    """A part of an image, in pixels from its upper left corner; fractions of a pixel are as good."""

    left: float
    upper: float
    right: float
    lower: float


class Augmentation(Protocol):
    """A frozen dataclass whose fields are its settings.  The same draws give the same box."""

    is_random: ClassVar[bool]
    """Whether what is drawn differs from round to round."""

    @property
    def size(self) -> int:
        """Height and width of what the network gets."""
        ...

    def drawn(self, width: int, height: int, random: PortableRandom) -> Box:
        """The part of an image of this size that is trained on."""
        ...

    def tested(self, width: int, height: int) -> Box:
        """The part that is tested on: nothing is left to chance."""
        ...


def central(width: float, height: float, fraction_x: float, fraction_y: float) -> Box:
    """The box in the middle with these fractions of the width and the height."""
    left, upper = width * (1 - fraction_x) / 2, height * (1 - fraction_y) / 2
    return Box(left, upper, width - left, height - upper)


def check_size(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}; expected 1 pixel or more")
