"""A population: labelled images on disk, split among the clients that own them.

This module owns the data's on-disk format and is the only one that reads or writes it.  What a data set has to bring is
one record per image (class, user, split) and a way to get the pixels: `write_population` sorts the records by user, so
that a client's examples are one contiguous slice of a memory-mapped array and a worker process opens a population of
any size at once.  `server_sim.data.glyphs.presets` and `server_sim.data.image_folder` produce such records.

Format version 1, a folder:

    manifest.json        names, counts, seed, recipe, and the size and sha256 of every array
    client_images.npy    uint8 [N, C, H, W], the examples of client 0, then of client 1, ...
    client_labels.npy    int64 [N]
    client_offsets.npy   int64 [num_clients + 1]: client k owns examples offsets[k] to offsets[k + 1]
    test_images.npy      uint8 [M, C, H, W]
    test_labels.npy      int64 [M]
    verified.json        (a memo, not data) the size and time of each file whose hash was found right

Class ids: the classes that clients hold come first, so ids 0..num_classes-1 are exactly the columns of W.  A class that
only the test split holds (retrieval: SOP's train and test classes are disjoint) has an id from num_classes upwards.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.vocabulary import COLUMNS, IMAGES, ExampleSet, IntArray
from server_sim.data.fingerprints import Memo, fingerprint, read_memo, write_memo

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
VERIFIED = "verified.json"
ARRAYS = ("client_images", "client_labels", "client_offsets", "test_images", "test_labels")
EXAMPLES_PER_BLOCK = 512  # how many images are asked for at a time while writing

ImagesOf = Callable[[IntArray], NDArray[np.uint8]]  # record numbers [B] -> their images [B, C, H, W]
Progress = Callable[[int, int], None]  # (examples done, examples in total)


class PopulationError(ValueError):
    """A population's folder is missing, damaged or of another format."""


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
        self.train = ExampleSet(
            {IMAGES: arrays["client_images"]}, arrays["client_labels"]
        )  # all clients' examples
        self.test = ExampleSet({IMAGES: arrays["test_images"]}, arrays["test_labels"])
        self.table_sizes = {COLUMNS: self.num_classes}
        channels, height, width = arrays["client_images"].shape[1:]
        self.image_shape: tuple[int, int, int] = (channels, height, width)
        self._seed: int = manifest["seed"]
        self._offsets: IntArray = arrays["client_offsets"]

    def num_examples(self, client_id: int) -> int:
        start, stop = self._bounds(client_id)
        return stop - start

    def client_examples(self, client_id: int) -> ExampleSet:
        start, stop = self._bounds(client_id)
        features = {name: feature[start:stop] for name, feature in self.train.features.items()}
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
    progress: Progress | None = None,
) -> None:
    """Write a population of these records, asking `images_of` for their pixels block by block.

    `recipe` says how the data came about and is stored as it is.  The folder appears complete or not at all.  Raises
    FileExistsError when `directory` exists, also when another process finished it in the meantime.
    """
    directory = Path(directory)
    if directory.exists():
        raise FileExistsError(f"{directory} exists; remove it first to write the population anew")
    layout = _lay_out(records)
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

    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        _save(unfinished, "client_labels", layout.labels[layout.train])
        _save(unfinished, "client_offsets", layout.offsets)
        _save(unfinished, "test_labels", layout.labels[layout.test])
        _save_images(unfinished, "client_images", layout.train, checked_images_of, image_shape)
        _save_images(unfinished, "test_images", layout.test, checked_images_of, image_shape)
        manifest = {
            "format_version": FORMAT_VERSION,
            "name": name,
            "num_classes": layout.num_classes,
            "num_train_examples": len(layout.train),
            "num_test_examples": len(layout.test),
            "image_shape": list(image_shape),
            "seed": seed,
            "recipe": recipe,
            "files": {f"{array}.npy": fingerprint(unfinished / f"{array}.npy") for array in ARRAYS},
            "class_names": layout.class_names,
            "client_names": layout.client_names,
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        (unfinished / MANIFEST).write_text(text, encoding="utf-8")
        unfinished.chmod(0o755)  # mkdtemp makes folders private
        _rename_to_new(unfinished, directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # gone already when the rename succeeded


def open_population(directory: Path) -> Population:
    """Open a population for reading, after checking its format, sizes and hashes.

    A file's hash is computed once and remembered in verified.json by the file's size and time, so that the worker
    processes that open the same population start at once.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    _verify_files(directory, manifest["files"])
    shape = tuple(manifest["image_shape"])
    num_train, num_test = manifest["num_train_examples"], manifest["num_test_examples"]
    arrays = {
        "client_images": _load(directory, "client_images", np.uint8, (num_train, *shape)),
        "client_labels": _load(directory, "client_labels", np.int64, (num_train,)),
        "client_offsets": _load(directory, "client_offsets", np.int64, (len(manifest["client_names"]) + 1,)),
        "test_images": _load(directory, "test_images", np.uint8, (num_test, *shape)),
        "test_labels": _load(directory, "test_labels", np.int64, (num_test,)),
    }
    return Population(directory, manifest, arrays)


@dataclass(frozen=True)
class _Layout:
    """Records by number: which class, which client, in which order on disk."""

    class_names: list[str]
    client_names: list[str]
    num_classes: int  # of the training split
    labels: IntArray  # [records] class ids
    train: IntArray  # record numbers of the training split, sorted by client
    test: IntArray  # record numbers of the test split
    offsets: IntArray  # [clients + 1] into train


def _lay_out(records: Records) -> _Layout:
    is_test = np.asarray(records.is_test, dtype=bool)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    users = [records.users[number] for number in train.tolist()]
    train_classes = {records.classes[number] for number in train.tolist()}
    class_names = sorted(train_classes) + sorted(set(records.classes) - train_classes)
    client_names = sorted(set(users))
    class_id = {class_name: number for number, class_name in enumerate(class_names)}
    client_id = {client_name: number for number, client_name in enumerate(client_names)}
    owners = np.array([client_id[user] for user in users], dtype=np.int64)
    return _Layout(
        class_names,
        client_names,
        num_classes=len(train_classes),
        labels=np.array([class_id[class_name] for class_name in records.classes], dtype=np.int64),
        train=train[np.argsort(owners, kind="stable")],
        test=test,
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owners))]).astype(np.int64),
    )


def _save(directory: Path, array: str, values: IntArray) -> None:
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


def _rename_to_new(source: Path, target: Path) -> None:
    try:
        source.rename(target)  # fails when the target is a folder with something in it
    except OSError as error:
        if target.exists():
            raise FileExistsError(f"{target} was finished by another process; open that one") from error
        raise


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise PopulationError(f"{path} does not exist: {directory} is not a population's folder") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PopulationError(f"{path} is not JSON ({error}); {_MAKE_ANEW.format(directory)}") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if version != FORMAT_VERSION:
        raise PopulationError(
            f"{path} has format version {version!r}, this program reads {FORMAT_VERSION}; "
            + _MAKE_ANEW.format(directory)
        )
    for key, kind in _MANIFEST_KEYS.items():
        if not isinstance(manifest.get(key), kind):
            raise PopulationError(
                f"{path} has {key} = {manifest.get(key)!r}, expected {kind.__name__}; "
                + _MAKE_ANEW.format(directory)
            )
    return dict(manifest)


_MAKE_ANEW = "delete the folder {} and make the data again"
_MANIFEST_KEYS = {
    "name": str,
    "num_classes": int,
    "num_train_examples": int,
    "num_test_examples": int,
    "image_shape": list,
    "seed": int,
    "recipe": dict,
    "files": dict,
    "class_names": list,
    "client_names": list,
}


def _verify_files(directory: Path, expected: dict[str, dict[str, Any]]) -> None:
    memo_path = directory / VERIFIED
    memo = read_memo(memo_path)
    found: Memo = {}
    for array in ARRAYS:
        path = directory / f"{array}.npy"
        if path.name not in expected or not path.is_file():
            raise PopulationError(f"{path} is missing; {_MAKE_ANEW.format(directory)}")
        status, wanted = path.stat(), expected[path.name]
        if status.st_size != wanted["bytes"]:
            raise PopulationError(
                f"{path} has {status.st_size} bytes, {MANIFEST} says {wanted['bytes']}; "
                + _MAKE_ANEW.format(directory)
            )
        found[path.name] = [status.st_size, status.st_mtime_ns, wanted["sha256"]]
        if memo.get(path.name) == found[path.name]:
            continue
        sha256 = fingerprint(path)["sha256"]
        if sha256 != wanted["sha256"]:
            raise PopulationError(
                f"{path} has sha256 {sha256}, {MANIFEST} says {wanted['sha256']}; "
                + _MAKE_ANEW.format(directory)
            )
    if found != memo and os.access(directory, os.W_OK):
        write_memo(memo_path, found)


def _load(directory: Path, array: str, dtype: type[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    path = directory / f"{array}.npy"
    try:
        values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise PopulationError(
            f"{path} is not an array file ({error}); {_MAKE_ANEW.format(directory)}"
        ) from None
    if values.dtype != dtype or values.shape != shape:
        raise PopulationError(
            f"{path} holds {values.dtype} {list(values.shape)}, {MANIFEST} says {np.dtype(dtype)} {list(shape)}; "
            + _MAKE_ANEW.format(directory)
        )
    return values
