"""A population whose training examples are dealt out anew, as a folder of its own.

The folder's name carries a digest of what it was made from and how, so a changed partition never meets an old one.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.choice import Choice, chosen
from ondevice.contract.vocabulary import CLASSES, COLUMNS, IMAGES, IntArray
from server_sim.data.made_once import made_once
from server_sim.data.partitioners import NOBODY, PARTITIONERS, Pool
from server_sim.data.population import (
    Layout,
    Population,
    Progress,
    Records,
    lay_out,
    write_arrays,
    write_population,
)
from server_sim.data.population_files import MANIFEST


def materialize_partition(
    population: Population, partition: Choice, seed: int, cache: Path, progress: Progress | None = None
) -> Path:
    """The folder under `cache`, written if it is not there yet."""
    source = hashlib.sha256((population.directory / MANIFEST).read_bytes()).hexdigest()
    recipe = {"partition": partition.to_document(), "seed": seed, "manifest_sha256": source}
    name = f"{population.name}-{partition.name.replace('_', '-')}"

    def write(directory: Path) -> None:
        if IMAGES not in population.train.features:
            _write_arrays_anew(directory, population, owners_of(population, partition, seed), name, recipe)
            return
        records, numbers = _dealt_anew(population, partition, seed)
        about: dict[str, Any] = {"name": name, "seed": seed, "recipe": {**recipe, "of": population.recipe}}
        if population.image_files is None:
            images_of = partial(_images_of, population, numbers)
            about |= {"image_shape": population.image_shape, "attribution": population.attribution}
            write_population(directory, records, images_of, progress=progress, **about)
        else:
            _write_paths(directory, population, records, numbers, about)

    return made_once(cache, name, recipe, write)


def _images_of(population: Population, numbers: IntArray, rows: IntArray) -> NDArray[np.uint8]:
    chosen_rows, num_train = numbers[rows], len(population.train)
    images = np.empty((len(rows), *population.image_shape), np.uint8)
    is_test = chosen_rows >= num_train
    images[~is_test] = population.train.features[IMAGES][chosen_rows[~is_test]]
    images[is_test] = population.test.features[IMAGES][chosen_rows[is_test] - num_train]
    return images


def _write_paths(
    directory: Path, population: Population, records: Records, numbers: IntArray, about: dict[str, Any]
) -> None:
    """Images that stay files: their paths are dealt out."""
    splits: list[Any] = [split.features[IMAGES] for split in (population.train, population.test)]
    paths = np.concatenate([images.paths for images in splits])
    places = None
    if population.places is not None:
        places = np.concatenate([population.places, np.full((len(population.test), 2), np.nan)])[numbers]
    write_arrays(
        directory,
        lay_out(records),
        {IMAGES: paths[numbers]},
        image_files=population.image_files,
        places=places,
        **about,
    )


def owners_of(population: Population, partition: Choice, seed: int) -> IntArray:
    """The client that gets each training example."""
    sizes = [population.num_examples(client) for client in population.client_ids]
    users = np.repeat(np.arange(len(sizes)), sizes)
    partitioner = chosen(PARTITIONERS, partition, "partitioner")
    classes = population.train.features.get(CLASSES)
    pool = Pool(
        np.asarray(population.train.labels),
        users,
        population.places,
        None if classes is None else np.asarray(classes),
    )
    return partitioner.owners(pool, np.random.default_rng(seed))


def _shared_out(owners: IntArray) -> tuple[IntArray, IntArray]:
    """The example and the client of everything that is dealt out; an example of several clients comes several times."""
    columns = owners.reshape(len(owners), -1)
    examples, places = np.nonzero(columns != NOBODY)
    return examples, columns[examples, places]


def _dealt_anew(population: Population, partition: Choice, seed: int) -> tuple[Records, IntArray]:
    """Records, and the example of each: those of the training split first, as the population numbers them."""
    kept, owners = _shared_out(owners_of(population, partition, seed))
    num_test = len(population.test)
    labels = np.concatenate([population.train.labels[kept], population.test.labels])
    digits = len(str(owners.max()))
    records = Records(
        classes=[population.class_names[label] for label in labels.tolist()],
        users=[f"client {owner:0{digits}d}" for owner in owners.tolist()] + [""] * num_test,
        is_test=[False] * len(kept) + [True] * num_test,
    )
    return records, np.concatenate([kept, len(population.train) + np.arange(num_test)])


def _write_arrays_anew(
    directory: Path, population: Population, owners: IntArray, name: str, recipe: dict[str, Any]
) -> None:
    """Features of any kind; classes keep their ids, which features may hold."""
    kept, clients = _shared_out(owners)
    held, clients = np.unique(clients, return_inverse=True)
    train, test = population.train, population.test
    digits = len(str(held.max()))
    layout = Layout(
        class_names=list(population.class_names),
        client_names=[f"client {client:0{digits}d}" for client in held.tolist()],
        num_classes=population.num_classes,
        labels=np.concatenate([train.labels[kept], test.labels]),
        train=np.argsort(clients, kind="stable"),
        test=len(kept) + np.arange(len(test)),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(clients))]).astype(np.int64),
    )
    write_arrays(
        directory,
        layout,
        {
            feature: np.concatenate([values[kept], test.features[feature]])
            for feature, values in train.features.items()
        },
        name=name,
        seed=recipe["seed"],
        recipe={**recipe, "of": population.recipe},
        tables={table: size for table, size in population.table_sizes.items() if table != COLUMNS},
    )
