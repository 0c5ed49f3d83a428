"""Small data sets in the formats in which the large ones are published, by the names that experiments know them by.

`PUBLISHED[name](folder)` writes one that `data.population = name` with `data.source = folder` reads.  Every one has clients
that hold several classes, and a test split.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

USERS = ("1021", "5", "Ann Other", "Ben, the 2nd", "88", "967")
"""As in the published splits: numbers, and names that may hold a comma."""
CELLS = ("8085808c", "89c25a3", "4876029", "47a84fd4", "3b4")
NUM_CLASSES, PER_CLIENT, TEST_PER_CLASS = 12, 7, 2


def write_landmarks(source: Path) -> None:
    """Landmarks-User-160k: two tables, and images in folders named by the first three letters of their ids."""
    train = [(user, _image_id("gld", user, n), (3 * k + n) % NUM_CLASSES) for k, user, n in _dealt(USERS)]
    test = [
        (_image_id("gld test", label, n), label)
        for label in range(NUM_CLASSES)
        for n in range(TEST_PER_CLASS)
    ]
    _write_csv(source / "federated_train.csv", ("user_id", "image_id", "class"), train)
    _write_csv(source / "test.csv", ("image_id", "class"), test)
    labels = {image_id: label for _, image_id, label in train} | dict(test)
    for image_id, label in labels.items():
        write_image(source / "train" / image_id[0] / image_id[1] / image_id[2] / f"{image_id}.jpg", label)


def write_inaturalist_split(archive: str, table: str, users: Sequence[str], source: Path) -> None:
    """iNaturalist with Google's split: tables that name images by their ids, and images in folders by species."""
    columns = ("user_id", "image_id", "class", "label")
    train = [
        (user, _image_id(table, user, n), (3 * k + n) % NUM_CLASSES, 400 + (3 * k + n) % NUM_CLASSES)
        for k, user, n in _dealt(users)
    ]
    test = [
        (_image_id("inat test", label, n), label, 400 + label)
        for label in range(NUM_CLASSES)
        for n in range(TEST_PER_CLASS)
    ]
    _write_csv(source / archive / table, columns, train)
    _write_csv(source / archive / "test.csv", columns[1:], test)
    for image_id, label in [(row[1], row[2]) for row in train] + [(row[0], row[1]) for row in test]:
        write_image(source / "train_val_images" / "Aves" / f"Species {label}" / f"{image_id}.jpg", label)


def write_inaturalist_tables(source: Path, num_large: int = 2, per_class: int = 101) -> None:
    """iNaturalist 2017 without a split: its own tables.  `num_large` classes have enough images to be kept, one has not.

    Of the images of a class, one has no place and another no user.
    """
    counts = [per_class] * num_large + [7]
    categories = [{"id": 10 * k, "name": f"Species {k}", "supercategory": "Aves"} for k in range(len(counts))]
    rng = np.random.default_rng(0)
    image_number = 0
    for split, sizes in (("train", counts), ("val", [3] * len(counts))):
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        locations: list[dict[str, object]] = []
        for label, size in enumerate(sizes):
            for n in range(size):
                name = f"train_val_images/Aves/Species {label}/{_image_id(split, label, n)}.jpg"
                images.append({"id": image_number, "file_name": name, "width": 20, "height": 16})
                annotations.append({"id": image_number, "image_id": image_number, "category_id": 10 * label})
                known = {"lat": float(rng.normal(40, 8)), "lon": float(rng.normal(-95, 15))}
                place = {"lat": None, "lon": None} if n == 1 else known
                user = None if n == 2 else int(rng.integers(9))
                locations.append({"id": image_number, **place, "user_id": user, "date": "2016-05-01"})
                write_image(source / name, label)
                image_number += 1
        table = {"images": images, "annotations": annotations, "categories": categories}
        (source / f"{split}2017.json").write_text(json.dumps(table))
        (source / f"{split}2017_locations.json").write_text(json.dumps(locations))


def write_cifar(num_classes: int, source: Path) -> None:
    """The binary version: five files of one label byte, or one file of two."""
    rng = np.random.default_rng(0)

    def records(count: int, label_bytes: int) -> bytes:
        labels = np.arange(count) % num_classes
        pixels = rng.integers(0, 256, (count, 3 * 32 * 32), np.uint8)
        coarse = [labels // 5] * (label_bytes - 1)
        return np.column_stack([*coarse, labels, pixels]).astype(np.uint8).tobytes()

    names = "\n".join(f"class_{label}" for label in range(num_classes)) + "\n\n"
    if num_classes == 10:
        folder = source / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        for number in range(1, 6):
            (folder / f"data_batch_{number}.bin").write_bytes(records(50, 1))
        (folder / "test_batch.bin").write_bytes(records(20, 1))
        (folder / "batches.meta.txt").write_text(names)
    else:
        folder = source / "cifar-100-binary"
        folder.mkdir(parents=True)
        (folder / "train.bin").write_bytes(records(300, 2))
        (folder / "test.bin").write_bytes(records(100, 2))
        (folder / "fine_label_names.txt").write_text(names)
        (folder / "coarse_label_names.txt").write_text("".join(f"coarse_{label}\n" for label in range(20)))


def write_online_products(source: Path, num_classes: int = 60) -> None:
    """Stanford Online Products: 2 to 9 images per product, and other products in the test."""
    folder = source / "Stanford_Online_Products"
    image_number = 0
    for split, first in (("train", 1), ("test", num_classes + 1)):
        lines = ["image_id class_id super_class_id path"]
        for label in range(first, first + num_classes):
            for n in range(2 + 3 * label % 8 if split == "train" else 3):
                image_number += 1
                path = f"bicycle_final/{111085122871 + label}_{n}.JPG"
                lines.append(f"{image_number} {label} 1 {path}")
                write_image(folder / path, label)
        (folder / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")


def write_imagenet(source: Path, num_classes: int = 24) -> None:
    """ImageNet-21k: a folder per class."""
    for label in range(num_classes):
        synset = f"n{4475 + 97 * label:08d}"
        for n in range(5 + label % 6):
            write_image(source / synset / f"{synset}_{n}.JPEG", label)


PUBLISHED: dict[str, Callable[[Path], None]] = {
    "landmarks-user-160k": write_landmarks,
    "inaturalist-user-120k": lambda source: write_inaturalist_split(
        "inaturalist-user-120k", "federated_train_user_120k.csv", USERS, source
    ),
    "inaturalist-geo-30k": lambda source: _write_geo("30k", source),
    "inaturalist-geo-3k": lambda source: _write_geo("3k", source),
    "inaturalist-geo-1k": lambda source: _write_geo("1k", source),
    "inaturalist-geo-100": lambda source: _write_geo("100", source),
    "cifar-10": lambda source: write_cifar(10, source),
    "cifar-100": lambda source: write_cifar(100, source),
    "stanford-online-products": write_online_products,
    "imagenet-21k": write_imagenet,
}


def write_image(path: Path, label: int, size: tuple[int, int] = (20, 16)) -> None:
    """A JPEG whose colour says the class and whose noise the file."""
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:4], "little"))
    colour = np.array([29 * label % 200, 67 * label % 200, 113 * label % 200])
    pixels = colour + rng.integers(0, 56, (size[1], size[0], 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=90)


def _write_geo(label: str, source: Path) -> None:
    write_inaturalist_split("inaturalist-geo", f"federated_train_geo_{label}.csv", CELLS, source)


def _dealt(users: Sequence[str]) -> Iterable[tuple[int, str, int]]:
    """User's number, user, number of the image; no two users have as many."""
    return ((k, user, n) for k, user in enumerate(users) for n in range(PER_CLIENT + k))


def _image_id(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
