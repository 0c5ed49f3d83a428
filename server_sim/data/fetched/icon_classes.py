"""Icon sets -> classes: an icon's name without its style is what it shows, and the set is who drew it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server_sim.data.fetched.icon_sets import IconSet

STYLES = (
    *(
        "outline",
        "outlined",
        "filled",
        "fill",
        "line",
        "solid",
        "bold",
        "light",
        "thin",
        "duotone",
        "rounded",
    ),
    *("round", "sharp", "regular", "linear", "broken", "twotone", "two-tone", "alt", "o"),
)
_STYLE = re.compile(rf"(-({'|'.join(STYLES)}|\d+))+$")


@dataclass(frozen=True)
class Drawing:
    """One icon of one set."""

    shows: str
    """The class."""
    icon_set: IconSet
    name: str


def class_of(icon: str) -> str:
    """`home-filled`, `home-outline-rounded` and `home-2` all show a home."""
    return _STYLE.sub("", icon)


def select_drawings(sets: Sequence[IconSet], *, min_sets: int, max_variants: int) -> list[Drawing]:
    """The drawings of every class that at least `min_sets` sets draw, at most `max_variants` of a class per set.

    Equal SVG of one class counts once, for the first set that has it.
    """
    by_class: dict[str, list[Drawing]] = defaultdict(list)
    bodies: dict[str, set[str]] = defaultdict(set)
    for icon_set in sets:
        variants: dict[str, int] = defaultdict(int)
        for name in sorted(icon_set.bodies):
            shows, body = class_of(name), icon_set.bodies[name]
            if body not in bodies[shows] and variants[shows] < max_variants:
                bodies[shows].add(body)
                variants[shows] += 1
                by_class[shows].append(Drawing(shows, icon_set, name))
    return [
        drawing
        for shows in sorted(by_class)
        if len({drawing.icon_set.prefix for drawing in by_class[shows]}) >= min_sets
        for drawing in by_class[shows]
    ]


def held_out_families(drawings: Sequence[Drawing], share: float, rng: np.random.Generator) -> set[str]:
    """Families whose drawings are the test, drawn by chance: together at most this share of all drawings."""
    sizes: dict[str, int] = defaultdict(int)
    for drawing in drawings:
        sizes[drawing.icon_set.family] += 1
    held_out: set[str] = set()
    left = share * len(drawings)
    for family in rng.permutation(sorted(sizes)).tolist():
        if sizes[family] <= left:
            held_out.add(family)
            left -= sizes[family]
    return held_out


def shards(num_drawings: int, max_size: int, rng: np.random.Generator) -> list[int]:
    """The shard of each drawing of a set: as few as `max_size` allows, alike in size, dealt by chance."""
    count = -(-num_drawings // max_size)
    dealt: list[int] = rng.permutation(np.arange(num_drawings) % count).tolist()
    return dealt
