"""ImageNet-21k: 14.2 million images of 21,841 classes (Deng et al. 2009; FedSS, A.3).

In `data.source`, a folder per class with its images, as its archives unpack:

    n00004475/n00004475_6590.JPEG, ...

"For every class we do a random 80-20 split on its samples."  Clients are FedSS's: 25,691 of them with 20 classes each, which
is 442 images per client.  A class of one image has no test.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.choice import Choice
from server_sim.data.partitioners.few_classes import FewClasses
from server_sim.data.partitioners.partitioner import Pool
from server_sim.data.population import Progress, Records
from server_sim.data.population_files import PopulationError
from server_sim.data.published.image_population import (
    SEED,
    ImageRecords,
    client_names,
    materialize_images,
)
from server_sim.data.published.source_folder import SourceFolder

NAME = "imagenet-21k"
AUGMENTATION = Choice("random_crop", {"resized": 256, "size": 224})
CLIENTS = FewClasses(examples_per_client=442, classes_per_client=20)
TEST_SHARE = 0.2
_ENDINGS = (".jpeg", ".jpg", ".png")


def materialize(cache: Path, source: Path, progress: Progress | None = None) -> Path:
    SourceFolder(source, NAME, "ImageNet (the archives of all its classes)")
    folders = _class_folders(source)
    # A folder's time changes when a file is added or removed.  Reading 14 million names takes minutes, this takes seconds.
    made_from = {folder.name: folder.stat().st_mtime_ns for folder in folders}

    def read() -> ImageRecords:
        classes = []
        for number, folder in enumerate(folders):
            classes.append(_ClassFiles(folder.name, _image_names(folder)))
            if progress is not None:
                progress(number + 1, len(folders))
        return _split([files for files in classes if len(files.names)])

    return materialize_images(cache, NAME, source, AUGMENTATION, made_from, read)


@dataclass(frozen=True)
class _ClassFiles:
    name: str
    names: NDArray[np.bytes_]
    """bytes [n], sorted"""


def _class_folders(source: Path) -> list[Path]:
    folders = sorted(Path(entry) for entry in os.scandir(source) if entry.is_dir())
    if not folders:
        raise PopulationError(
            f"{NAME}: {source} has no folders, and should have one per class, such as n00004475; unpack the archives there"
        )
    return folders


def _image_names(folder: Path) -> NDArray[np.bytes_]:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(_ENDINGS))
    return np.array([os.fsencode(f"{folder.name}/{name}") for name in names], np.bytes_)


def _split(classes: list[_ClassFiles]) -> ImageRecords:
    counts = np.array([len(files.names) for files in classes], np.int64)
    if counts.sum() - len(counts) < 1:
        raise PopulationError(
            f"{NAME}: no class has two images or more ending in {', '.join(_ENDINGS)}; unpack the archives"
        )
    rng = np.random.default_rng(SEED)
    labels = np.repeat(np.arange(len(classes)), counts)
    is_test = np.concatenate([_in_test(count, rng) for count in counts.tolist()])
    train_labels = labels[~is_test]
    owners = np.zeros_like(labels)
    owners[~is_test] = CLIENTS.owners(Pool(train_labels, np.zeros_like(train_labels)), rng)
    return ImageRecords(
        # Names of test images' owners are not looked at.
        Records([classes[label].name for label in labels.tolist()], client_names(owners), is_test.tolist()),
        np.concatenate([files.names for files in classes]),
    )


def _in_test(count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """[count]: a fifth of them, rounded, and never all."""
    in_test = np.zeros(count, bool)
    in_test[rng.permutation(count)[: min(round(TEST_SHARE * count), count - 1)]] = True
    return in_test
