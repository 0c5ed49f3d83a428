"""A population: labelled examples on disk, split among the clients that own them.

This module owns the data's on-disk format and is the only one that reads or writes it.  What a data set has to bring is
one record per image (class, user, split) and a way to get the pixels: `write_population` sorts the records by user, so
that a client's examples are one contiguous slice of a memory-mapped array and a worker process opens a population of
any size at once.  `server_sim.data.glyphs.presets` and `server_sim.data.image_folder` produce such records.

Format version 1, a folder:

    manifest.json        names, counts, seed, recipe, and the size and sha256 of every array
    client_images.npy    uint8 [N, C, H, W], the examples of client 0, then of client 1, ...; or client_F.npy for every
                         feature F that the manifest names (`server_sim.data.texts`: int64 tokens); or, where the manifest
                         has `image_files`, bytes [N]: the paths of files, which stay where they are
                         (`server_sim.data.image_files`)
    client_labels.npy    int64 [N]
    client_offsets.npy   int64 [num_clients + 1]: client k owns examples offsets[k] to offsets[k + 1]
    client_places.npy    (where the manifest has `places`) float64 [N, 2]: the latitude and longitude of an example
    test_images.npy      uint8 [M, C, H, W], or test_F.npy
    test_labels.npy      int64 [M]
    ATTRIBUTION.md       (where the data has authors to name) who made it, under which licences
    verified.json        (a memo, not data) the size and time of each file whose hash was found right

Class ids: the classes that clients hold come first, so ids 0..num_classes-1 are exactly the columns of W.  A class that
only the test split holds (retrieval: SOP's train and test classes are disjoint) has an id from num_classes upwards.

A model has a row per class in the table `columns`; a data set may name other tables, with their numbers of rows.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.vocabulary import COLUMNS, IMAGES, ExampleSet, IntArray
from server_sim.data.image_files import ImageFiles, open_image_files
from server_sim.data.population_files import (
    PopulationError,
    features_of,
    load_array,
    read_attribution,
    read_manifest,
    rename_to_new,
    verify_files,
    write_attribution,
    write_manifest,
)

EXAMPLES_PER_BLOCK = 512  # how many images are asked for at a time while writing

ImagesOf = Callable[[IntArray], NDArray[np.uint8]]  # record numbers [B] -> their images [B, C, H, W]
Progress = Callable[[int, int], None]  # (examples done, examples in total)


@dataclass(frozen=True)
class Records:
    """Who took which picture of what: entry i of each sequence describes image i."""

    classes: Sequence[str]
    users: Sequence[str]  # not looked at where is_test: the test split belongs to nobody
    is_test: Sequence[bool]

    def __post_init__(self) -> None:
        if not len(self.classes) == len(self.users) == len(self.is_test):
            raise ValueError(
                f"{len(self.classes)} classes, {len(self.users)} users and {len(self.is_test)} splits: "
                "a record needs one of each"
            )
        for split, wanted in (("train", False), ("test", True)):
            if wanted not in self.is_test:
                raise ValueError(f"no {split} record: a population needs both splits")


class Population:
    """A population's folder, open for reading.  Made by `open_population`."""

    def __init__(self, directory: Path, manifest: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.directory = directory
        self.name: str = manifest["name"]
        self.num_classes: int = manifest["num_classes"]
        self.class_names: tuple[str, ...] = tuple(manifest["class_names"])  # test-only classes included
        self.client_names: tuple[str, ...] = tuple(manifest["client_names"])
        self.client_ids = tuple(range(len(self.client_names)))
        self.recipe: dict[str, Any] = manifest["recipe"]
        self.image_files: dict[str, Any] | None = manifest.get("image_files")
        """Where the images lie that were not copied, and how they are cut."""
        self.places: NDArray[np.float64] | None = arrays.get("client_places")
        """[N, 2] latitude and longitude of every training example, where they are known"""

        def examples_of(split: str) -> ExampleSet:
            features = {name: arrays[f"{split}_{name}"] for name in features_of(manifest)}
            if self.image_files is not None:
                features[IMAGES] = open_image_files(features[IMAGES], self.image_files)
            return ExampleSet(features, arrays[f"{split}_labels"])

        # All clients' examples.
        self.train = examples_of("client")
        self.test = examples_of("test")
        self.table_sizes: dict[str, int] = {COLUMNS: self.num_classes, **manifest.get("tables", {})}
        self.attribution = read_attribution(directory)
        self._seed: int = manifest["seed"]
        self._offsets: IntArray = arrays["client_offsets"]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        if IMAGES not in self.train.features:
            held = ", ".join(self.train.features)
            raise PopulationError(
                f"population {self.name} holds {held} and no images; choose a model of these"
            )
        channels, height, width = self.train.features[IMAGES].shape[1:]
        return channels, height, width

    def num_examples(self, client_id: int) -> int:
        start, stop = self._bounds(client_id)
        return stop - start

    def client_examples(self, client_id: int) -> ExampleSet:
        start, stop = self._bounds(client_id)
        features = {
            name: feature.part(start, stop) if isinstance(feature, ImageFiles) else feature[start:stop]
            for name, feature in self.train.features.items()
        }
        return ExampleSet(features, self.train.labels[start:stop])

    def private_seed(self, client_id: int) -> int:
        """The 64-bit seed that client `client_id` draws its negatives with.

        It belongs to the client and is never sent: a server that knew it could solve S_k for P_k.
        """
        self._bounds(client_id)
        digest = hashlib.sha256(f"fedss private seed {self._seed} {client_id}".encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def _bounds(self, client_id: int) -> tuple[int, int]:
        if not 0 <= client_id < len(self.client_ids):
            raise IndexError(
                f"client {client_id} of population {self.name}: there are clients 0 to {len(self.client_ids) - 1}"
            )
        return int(self._offsets[client_id]), int(self._offsets[client_id + 1])


def write_population(
    directory: Path,
    records: Records,
    images_of: ImagesOf,
    *,
    name: str,
    image_shape: tuple[int, int, int],
    seed: int,
    recipe: dict[str, Any],
    attribution: str = "",
    progress: Progress | None = None,
) -> None:
    """Write a population of these records, asking `images_of` for their pixels block by block.

    `recipe` says how the data came about and is stored as it is, as is `attribution`.  The folder appears complete or not
    at all.  Raises FileExistsError when `directory` exists, also when another process finished it in the meantime.
    """
    directory = Path(directory)
    layout = lay_out(records)
    num_done = 0

    def checked_images_of(block: IntArray) -> NDArray[np.uint8]:
        nonlocal num_done
        images = images_of(block)
        if images.dtype != np.uint8 or images.shape != (len(block), *image_shape):
            raise ValueError(
                f"images_of gave {images.dtype} {list(images.shape)} for {len(block)} records; "
                f"expected uint8 {[len(block), *image_shape]}"
            )
        num_done += len(block)
        if progress is not None:
            progress(num_done, len(records.classes))
        return images

    with unfinished(directory) as folder:
        _save_images(folder, "client_images", layout.train, checked_images_of, image_shape)
        _save_images(folder, "test_images", layout.test, checked_images_of, image_shape)
        write_attribution(folder, attribution)
        said = {"name": name, "image_shape": list(image_shape), "seed": seed, "recipe": recipe}
        _finish(folder, layout, said)


@contextmanager
def unfinished(directory: Path) -> Iterator[Path]:
    """A folder beside `directory` that becomes it at the end, whole or not at all."""
    if directory.exists():
        raise FileExistsError(f"{directory} exists; remove it first to write the population anew")
    directory.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        yield folder
        folder.chmod(0o755)  # mkdtemp makes folders private
        rename_to_new(folder, directory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gone already when the rename succeeded


def _finish(folder: Path, layout: Layout, said: dict[str, Any]) -> None:
    """Labels and the manifest, beside the features that are there."""
    _save(folder, "client_labels", layout.labels[layout.train])
    _save(folder, "client_offsets", layout.offsets)
    _save(folder, "test_labels", layout.labels[layout.test])
    write_manifest(
        folder,
        {
            **said,
            "num_classes": layout.num_classes,
            "num_train_examples": len(layout.train),
            "num_test_examples": len(layout.test),
            "class_names": layout.class_names,
            "client_names": layout.client_names,
        },
    )


def write_arrays(
    directory: Path,
    layout: Layout,
    features: Mapping[str, NDArray[Any]],
    *,
    name: str,
    seed: int,
    recipe: dict[str, Any],
    tables: Mapping[str, int] | None = None,
    image_files: Mapping[str, Any] | None = None,
    places: NDArray[np.float64] | None = None,
) -> None:
    """Write a population whose features, by record, are in memory: tokens, say.

    `tables` are those that the data set names beside `columns`, with their numbers of rows.  With `image_files` the images
    are paths, and this says where they lead.  `places` has a latitude and a longitude per record.
    """
    shapes = {
        feature: {"dtype": str(values.dtype), "shape": list(values.shape[1:])}
        for feature, values in features.items()
    }
    with unfinished(Path(directory)) as folder:
        for feature, values in features.items():
            _save(folder, f"client_{feature}", values[layout.train])
            _save(folder, f"test_{feature}", values[layout.test])
        said: dict[str, Any] = {
            "name": name,
            "features": shapes,
            "tables": dict(tables or {}),
            "seed": seed,
            "recipe": recipe,
        }
        if image_files is not None:
            said["image_files"] = dict(image_files)
        if places is not None:
            said["places"] = True
            _save(folder, "client_places", places[layout.train])
        _finish(folder, layout, said)


def open_population(directory: Path) -> Population:
    """Open a population for reading, after checking its format, sizes and hashes.

    A file's hash is computed once and remembered in verified.json by the file's size and time, so that the worker
    processes that open the same population start at once.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    verify_files(directory, manifest)
    num_train, num_test = manifest["num_train_examples"], manifest["num_test_examples"]
    arrays = {
        "client_labels": load_array(directory, "client_labels", "int64", (num_train,)),
        "client_offsets": load_array(
            directory, "client_offsets", "int64", (len(manifest["client_names"]) + 1,)
        ),
        "test_labels": load_array(directory, "test_labels", "int64", (num_test,)),
    }
    if manifest.get("places"):
        arrays["client_places"] = load_array(directory, "client_places", "float64", (num_train, 2))
    for feature, (dtype, shape) in features_of(manifest).items():
        for split, count in (("client", num_train), ("test", num_test)):
            arrays[f"{split}_{feature}"] = load_array(directory, f"{split}_{feature}", dtype, (count, *shape))
    return Population(directory, manifest, arrays)


@dataclass(frozen=True)
class Layout:
    """Records by number: which class, which client, in which order on disk."""

    class_names: list[str]
    client_names: list[str]
    num_classes: int  # of the training split
    labels: IntArray  # [records] class ids
    train: IntArray  # record numbers of the training split, sorted by client
    test: IntArray  # record numbers of the test split
    offsets: IntArray  # [clients + 1] into train


def lay_out(records: Records) -> Layout:
    is_test = np.asarray(records.is_test, dtype=bool)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    users = [records.users[number] for number in train.tolist()]
    train_classes = {records.classes[number] for number in train.tolist()}
    class_names = sorted(train_classes) + sorted(set(records.classes) - train_classes)
    client_names = sorted(set(users))
    class_id = {class_name: number for number, class_name in enumerate(class_names)}
    client_id = {client_name: number for number, client_name in enumerate(client_names)}
    owners = np.array([client_id[user] for user in users], dtype=np.int64)
    return Layout(
        class_names,
        client_names,
        num_classes=len(train_classes),
        labels=np.array([class_id[class_name] for class_name in records.classes], dtype=np.int64),
        train=train[np.argsort(owners, kind="stable")],
        test=test,
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owners))]).astype(np.int64),
    )


def _save(directory: Path, array: str, values: NDArray[Any]) -> None:
    np.save(directory / f"{array}.npy", values, allow_pickle=False)


def _save_images(
    directory: Path, array: str, rows: IntArray, images_of: ImagesOf, image_shape: tuple[int, int, int]
) -> None:
    """Block by block, so that a data set larger than memory can be written."""
    shape = (len(rows), *image_shape)
    images = np.lib.format.open_memmap(directory / f"{array}.npy", mode="w+", dtype=np.uint8, shape=shape)
    for start in range(0, len(rows), EXAMPLES_PER_BLOCK):
        block = rows[start : start + EXAMPLES_PER_BLOCK]
        images[start : start + len(block)] = images_of(block)
    images.flush()
