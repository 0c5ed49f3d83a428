"""icons-3k and icons-11k: what hundreds of designers drew of the same thousands of things.

A class is what an icon shows, a client is a designer's set or a shard of it, and the test is drawings of families of sets
that no client has.  Sets copy each other, so near copies within a class are dropped, of the test first of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.tools.registries import fetch
from server_sim.data.fetched.icon_classes import Drawing, held_out_families, select_drawings, shards
from server_sim.data.fetched.icon_rendering import NEAR_COPY, render, without_near_copies
from server_sim.data.fetched.icon_sets import PACKAGE, IconSet, attribution, read_icon_sets
from server_sim.data.made_once import made_once
from server_sim.data.population import Progress, Records, write_population

IMAGE_SIZE = 32
RENDERING_VERSION = 1
"""Raise it when a change of the code changes the pixels or the deal."""


@dataclass(frozen=True)
class Preset:
    name: str
    min_sets: int
    """How many sets draw a class at least."""
    max_variants: int = 4
    """Styles of one class per set."""
    shard_size: int = 128
    """The most images of a client; Landmarks-User-160k has 130 per author."""
    test_share: float = 0.1
    seed: int = 0


ICONS_3K = Preset("icons-3k", min_sets=10)
ICONS_11K = Preset("icons-11k", min_sets=4)


def materialize(preset: Preset, cache: Path, progress: Progress | None = None) -> Path:
    """The folder of the preset's population under `cache`, fetched and rendered if it is not there yet."""
    recipe = {
        "rendering_version": RENDERING_VERSION,
        "preset": asdict(preset),
        "package": asdict(PACKAGE),
        "image_size": IMAGE_SIZE,
        "near_copy": NEAR_COPY,
    }

    def write(directory: Path) -> None:
        write_icons(directory, preset, read_icon_sets(fetch(PACKAGE, cache)), recipe, progress)

    return made_once(cache, preset.name, recipe, write)


def write_icons(
    directory: Path,
    preset: Preset,
    sets: list[IconSet],
    recipe: dict[str, Any],
    progress: Progress | None = None,
) -> None:
    """A population of these sets."""
    usable = [icon_set for icon_set in sets if icon_set.may_be_used]
    rng = np.random.default_rng(preset.seed)
    drawings = select_drawings(usable, min_sets=preset.min_sets, max_variants=preset.max_variants)
    held_out = held_out_families(drawings, preset.test_share, rng)
    # The clients' first: a picture of the test that is a copy of theirs is the one that goes.
    drawings.sort(key=lambda drawing: (drawing.shows, drawing.icon_set.family in held_out))
    images = np.stack(
        [_counted(drawing, number, len(drawings), progress) for number, drawing in enumerate(drawings)]
    )
    kept = _kept(drawings, images, held_out)
    drawings, images = [drawings[number] for number in kept], images[kept]
    is_test = [drawing.icon_set.family in held_out for drawing in drawings]
    write_population(
        directory,
        Records([drawing.shows for drawing in drawings], _clients(drawings, preset.shard_size, rng), is_test),
        lambda rows: images[rows, None],
        name=preset.name,
        image_shape=(1, IMAGE_SIZE, IMAGE_SIZE),
        seed=preset.seed,
        recipe={**recipe, "resvg_py": _resvg_version(), "test_families": sorted(held_out)},
        attribution=attribution(usable, Counter(drawing.icon_set.prefix for drawing in drawings)),
    )


def _counted(drawing: Drawing, number: int, total: int, progress: Progress | None) -> NDArray[np.uint8]:
    if progress is not None:
        progress(number + 1, total)
    return render(drawing, IMAGE_SIZE)


def _kept(drawings: list[Drawing], images: NDArray[np.uint8], held_out: set[str]) -> list[int]:
    """Without near copies, and without classes that no client holds."""
    by_class: dict[str, list[int]] = defaultdict(list)
    for number, drawing in enumerate(drawings):
        by_class[drawing.shows].append(number)
    kept: list[int] = []
    for numbers in by_class.values():
        distinct = [numbers[place] for place in without_near_copies(images[numbers])]
        if any(drawings[number].icon_set.family not in held_out for number in distinct):
            kept += distinct
    return kept


def _clients(drawings: list[Drawing], shard_size: int, rng: np.random.Generator) -> list[str]:
    """The client of every drawing: its set, and the shard of it."""
    by_set: dict[str, list[int]] = defaultdict(list)
    for number, drawing in enumerate(drawings):
        by_set[drawing.icon_set.prefix].append(number)
    clients = [""] * len(drawings)
    for prefix in sorted(by_set):
        numbers = by_set[prefix]
        for number, shard in zip(numbers, shards(len(numbers), shard_size, rng), strict=True):
            clients[number] = f"{prefix} {shard:03d}"
    return clients


def _resvg_version() -> str:
    try:
        return version("resvg-py")
    except PackageNotFoundError:
        return "none"
