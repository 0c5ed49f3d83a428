"""The splits of iNaturalist 2017 made anew from its own tables, as Hsu, Qi and Brown 2020 describe them in section 4.1.

Classes of fewer than 100 training images are left out, and of the others 100 images each are kept: every split has this same
pool.  Clients are the images' users, or S2 cells of at most N_max images, of which those below 0.01 N_max are left out.  Who
is kept is left to chance, so a split made here is like the published one, not the same.  Tested on: the validation images of
these classes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.vocabulary import IntArray
from server_sim.data.image_files import path_array
from server_sim.data.partitioners.geo import Geo
from server_sim.data.partitioners.partitioner import NOBODY, Pool
from server_sim.data.population import Records
from server_sim.data.population_files import PopulationError
from server_sim.data.published.image_population import SEED, ImageRecords
from server_sim.data.published.source_folder import SourceFolder

PER_CLASS = 100


@dataclass(frozen=True)
class Tables:
    train: Path
    test: Path
    locations: Path

    @classmethod
    def in_folder(cls, folder: SourceFolder, table: str) -> Tables:
        """`table` is the published split, which was not found: whoever has neither is told of both."""
        names = ("train2017.json", "val2017.json", "train2017_locations.json")
        missing = [name for name in names if folder.find_any(name) is None]
        if missing:
            raise PopulationError(
                f"{folder.data_set}: there is no {table} in {folder.path}, and to make the split {', '.join(missing)} "
                f"would be needed; unpack the federated split, or these tables of iNaturalist 2017, there"
            )
        return cls(*(folder.path / name for name in names))


@dataclass(frozen=True)
class _Annotated:
    """The images of one table, entry by entry."""

    ids: list[int]
    paths: list[str]
    classes: list[str]


def read(tables: Tables, max_examples: int | None) -> ImageRecords:
    """By user, or with N_max by S2 cell."""
    train, test = _annotated(tables.train), _annotated(tables.test)
    kept = balanced(train.classes, np.random.default_rng(SEED))
    users, places = _whose_and_where(tables.locations, [train.ids[number] for number in kept.tolist()])
    clients = users
    if max_examples is not None:
        labels = np.zeros(len(kept), np.int64)
        owners, cells = Geo(max_examples).cells(Pool(labels, labels, places))
        clients = [None if owner == NOBODY else cells[owner] for owner in owners.tolist()]
    owned = [number for number, client in enumerate(clients) if client is not None]
    in_train = kept[owned].tolist()
    classes = {train.classes[number] for number in in_train}
    in_test = [number for number, name in enumerate(test.classes) if name in classes]
    records = Records(
        classes=[train.classes[number] for number in in_train] + [test.classes[number] for number in in_test],
        users=[str(clients[number]) for number in owned] + [""] * len(in_test),
        is_test=[False] * len(in_train) + [True] * len(in_test),
    )
    paths = [train.paths[number] for number in in_train] + [test.paths[number] for number in in_test]
    nowhere = np.full((len(in_test), 2), np.nan)
    return ImageRecords(records, path_array(paths), np.concatenate([places[owned], nowhere]))


def balanced(classes: list[str], rng: np.random.Generator, per_class: int = PER_CLASS) -> IntArray:
    """The numbers of the records that are kept: `per_class` of every class that has as many."""
    names, labels, counts = np.unique(classes, return_inverse=True, return_counts=True)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    kept = [
        rng.choice(numbers, per_class, replace=False) for numbers in by_class if len(numbers) >= per_class
    ]
    if not kept:
        raise PopulationError(
            f"none of {len(names)} classes has {per_class} images; is train2017.json the whole table?"
        )
    return np.sort(np.concatenate(kept)).astype(np.int64)


def _annotated(path: Path) -> _Annotated:
    table = _json(path)
    try:
        class_names = {entry["id"]: f"{entry['id']:04d} {entry['name']}" for entry in table["categories"]}
        class_of = {entry["image_id"]: class_names[entry["category_id"]] for entry in table["annotations"]}
        images = [entry for entry in table["images"] if entry["id"] in class_of]
        return _Annotated(
            [entry["id"] for entry in images],
            [entry["file_name"] for entry in images],
            [class_of[entry["id"]] for entry in images],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unlike_the_published(path, error, "images, annotations and categories") from None


def _whose_and_where(path: Path, ids: list[int]) -> tuple[list[str | None], NDArray[np.float64]]:
    """The user of each image, and its place; None and NaN where the table does not know."""
    table = _json(path)
    users: list[str | None] = []
    places = np.full((len(ids), 2), np.nan)
    try:
        by_id = {entry["id"]: entry for entry in table}
        for number, image in enumerate(ids):
            entry = by_id.get(image, {})
            user = entry.get("user_id")
            users.append(None if user is None else str(user))
            if entry.get("lat") is not None and entry.get("lon") is not None:
                places[number] = entry["lat"], entry["lon"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unlike_the_published(path, error, "a list of id, lat, lon and user_id") from None
    return users, places


def _unlike_the_published(path: Path, error: Exception, expected: str) -> PopulationError:
    return PopulationError(
        f"{path} is not like the published table ({type(error).__name__}: {error}); expected {expected}: "
        "fetch the file again"
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PopulationError(f"{path} is not JSON ({error}); fetch the file again") from None
