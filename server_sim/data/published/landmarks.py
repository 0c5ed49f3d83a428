"""Landmarks-User-160k: photographs of 2,028 landmarks by 1,262 authors (Hsu, Qi and Brown 2020, section 4.2).

In `data.source`:

    federated_train.csv, test.csv    the split, of Google's "federated vision datasets" (or in landmarks-user-160k/ as the
                                     archive has them): user_id,image_id,class and image_id,class
    train/a/b/c/abc....jpg           the images of Google Landmarks Dataset v2, in the folders of its archives
"""

from __future__ import annotations

from pathlib import Path

from ondevice.contract.choice import Choice
from server_sim.data.population import Progress
from server_sim.data.published.image_population import ImageRecords, SplitImages, materialize_images
from server_sim.data.published.source_folder import SourceFolder, numbered, read_table, sha256_of

NAME = "landmarks-user-160k"
AUGMENTATION = Choice("random_crop", {"resized": 256, "size": 224})
"""That of FedSS, A.2; FedVC has scale_and_aspect."""


def materialize(cache: Path, source: Path, progress: Progress | None = None) -> Path:  # noqa: ARG001 - it takes seconds
    folder = SourceFolder(source, NAME, "Google Landmarks Dataset v2 and its federated split")
    train = folder.find("federated_train.csv", f"{NAME}/federated_train.csv")
    test = folder.find("test.csv", f"{NAME}/test.csv")
    root = folder.find("train")

    def read() -> ImageRecords:
        train_rows = read_table(train, ("user_id", "image_id", "class"))
        test_rows = read_table(test, ("image_id", "class"))
        classes = numbered([row["class"] for row in train_rows + test_rows])
        paths = [_path_of(row["image_id"]) for row in train_rows + test_rows]
        folder.check_images(root, paths)
        count = len(train_rows)
        users = [row["user_id"] for row in train_rows]
        return SplitImages(paths[:count], classes[:count], users).followed_by(
            SplitImages(paths[count:], classes[count:], [""] * len(test_rows))
        )

    return materialize_images(cache, NAME, root, AUGMENTATION, sha256_of(train, test), read)


def _path_of(image_id: str) -> str:
    return f"{'/'.join(image_id[:3])}/{image_id}.jpg"
