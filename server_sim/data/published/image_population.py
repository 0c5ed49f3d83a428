"""A population of published image files: the files stay where they are, the folder in the cache has their paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import IMAGES, IntArray
from server_sim.data.image_files import image_files_entry, path_array
from server_sim.data.made_once import made_once
from server_sim.data.population import Records, lay_out, write_arrays

SEED = 0
"""Of what a data set leaves to chance, and of the clients' private seeds."""


@dataclass(frozen=True)
class ImageRecords:
    """Records with the files that they are about."""

    records: Records
    paths: NDArray[np.bytes_]
    """[N], relative to the root"""
    places: NDArray[np.float64] | None = None
    """[N, 2] latitude and longitude"""


@dataclass(frozen=True)
class SplitImages:
    """Entry i of each list is about image i: as most data sets publish them."""

    paths: list[str]
    classes: list[str]
    users: list[str]
    """Of the test split nobody's."""

    def followed_by(self, test: SplitImages) -> ImageRecords:
        """These as the training split, and the others as the test."""
        num_train, num_test = len(self.paths), len(test.paths)
        records = Records(
            self.classes + test.classes, self.users + test.users, [False] * num_train + [True] * num_test
        )
        return ImageRecords(records, path_array(self.paths + test.paths))


def client_names(owners: IntArray) -> list[str]:
    """Whose each image is, for clients that have no names."""
    digits = len(str(owners.max()))
    return [f"client {owner:0{digits}d}" for owner in owners.tolist()]


def materialize_images(
    cache: Path,
    name: str,
    root: Path,
    augmentation: Choice,
    made_from: dict[str, Any],
    read: Callable[[], ImageRecords],
) -> Path:
    """The folder in the cache; `read` is called if it is not there yet, or `made_from` says something else than then."""
    entry = image_files_entry(root.resolve(), augmentation)
    recipe = {"data_set": name, "image_files": entry, "made_from": made_from}

    def write(directory: Path) -> None:
        found = read()
        write_arrays(
            directory,
            lay_out(found.records),
            {IMAGES: found.paths},
            name=name,
            seed=SEED,
            recipe=recipe,
            image_files=entry,
            places=found.places,
        )

    return made_once(cache, name, recipe, write)
