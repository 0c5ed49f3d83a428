"""CIFAR-10 and CIFAR-100, binary versions (Krizhevsky 2009): small enough to be arrays.

In `data.source`, or in cifar-10-batches-bin/ or cifar-100-binary/ below it as the archives have them:

    data_batch_1.bin to data_batch_5.bin, test_batch.bin, batches.meta.txt      a label and 3 x 32 x 32 bytes per image
    train.bin, test.bin, fine_label_names.txt                                   a coarse and a fine label before them

Nobody took these pictures.  Without a partition they are dealt to 100 clients by chance, 500 each; the papers' clients are
those of `partition = {name = "dirichlet", num_clients = 100, concentration = ...}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.vocabulary import IntArray
from server_sim.data.made_once import made_once
from server_sim.data.partitioners.iid import Iid
from server_sim.data.partitioners.partitioner import Pool
from server_sim.data.population import Progress, Records, write_population
from server_sim.data.population_files import PopulationError
from server_sim.data.published.image_population import SEED, client_names
from server_sim.data.published.source_folder import SourceFolder, sha256_of

IMAGE_SHAPE = (3, 32, 32)
NUM_CLIENTS = 100


@dataclass(frozen=True)
class Version:
    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    class_names: str
    label_bytes: int
    """Before each image; the last of them is the class."""


CIFAR_10 = Version(
    "cifar-10",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    "batches.meta.txt",
    1,
)
CIFAR_100 = Version("cifar-100", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", 2)


def materialize(version: Version, cache: Path, source: Path, progress: Progress | None = None) -> Path:
    folder = SourceFolder(source, version.name, f"{version.name.upper()}, binary version")
    files = (*version.train, version.test, version.class_names)
    paths = [folder.find(name, f"{version.folder}/{name}") for name in files]
    recipe: dict[str, Any] = {"data_set": version.name, "made_from": sha256_of(*paths)}
    return made_once(cache, version.name, recipe, partial(_write, version, paths, recipe, progress))


def _write(
    version: Version, paths: list[Path], recipe: dict[str, Any], progress: Progress | None, directory: Path
) -> None:
    names = paths[-1].read_text(encoding="utf-8").split()
    images, labels = zip(*(_read(path, version.label_bytes, len(names)) for path in paths[:-1]), strict=True)
    num_test = len(labels[-1])
    pixels, classes = np.concatenate(images), np.concatenate(labels)
    num_train = len(classes) - num_test
    # A class's number is part of its name, so that ids are the published ones.
    numbered_names = [f"{number:02d} {name}" for number, name in enumerate(names)]
    write_population(
        directory,
        Records(
            classes=[numbered_names[label] for label in classes.tolist()],
            users=_clients(classes[:num_train]) + [""] * num_test,
            is_test=[False] * num_train + [True] * num_test,
        ),
        lambda rows: pixels[rows],
        name=version.name,
        image_shape=IMAGE_SHAPE,
        seed=SEED,
        recipe=recipe,
        progress=progress,
    )


def _read(path: Path, label_bytes: int, num_classes: int) -> tuple[NDArray[np.uint8], IntArray]:
    size = label_bytes + int(np.prod(IMAGE_SHAPE))
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % size:
        raise PopulationError(
            f"{path} has {len(content)} bytes; expected a multiple of {size}, a record each: fetch the file again"
        )
    records = content.reshape(-1, size)
    labels = records[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= num_classes:
        raise PopulationError(
            f"{path} has the class {labels.max()}, of {num_classes} that have names; fetch the files again"
        )
    return records[:, label_bytes:].reshape(-1, *IMAGE_SHAPE), labels


def _clients(labels: IntArray) -> list[str]:
    count = min(NUM_CLIENTS, len(labels))
    owners = Iid(count).owners(Pool(labels, np.zeros_like(labels)), np.random.default_rng(SEED))
    # What is left over when the images are dealt goes round once more.
    left = np.flatnonzero(owners < 0)
    owners[left] = np.arange(len(left)) % count
    return client_names(owners)
