"""iNaturalist-User-120k and iNaturalist-Geo: photographs of 1,203 species (Hsu, Qi and Brown 2020, section 4.1).

In `data.source`:

    train_val_images/Aves/Acanthis cannabina/....jpg, ...   the images of iNaturalist 2017 (and test2017/, where it is there)

and the split, of Google's "federated vision datasets", in the folders of its archives or beside the images:

    inaturalist-user-120k/federated_train_user_120k.csv     user_id,image_id,class,label
    inaturalist-geo/federated_train_geo_3k.csv, ...         the same, a geo cell as the user; 30k, 3k, 1k and 100
    test.csv in the same folder                             image_id,class,label

or else what the split is made of (`inaturalist_splits`):

    train2017.json, val2017.json                            images, annotations, categories
    train2017_locations.json                                id, lat, lon and user_id of the training images
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ondevice.contract.choice import Choice
from server_sim.data.population import Progress
from server_sim.data.population_files import PopulationError
from server_sim.data.published import inaturalist_splits
from server_sim.data.published.image_population import ImageRecords, SplitImages, materialize_images
from server_sim.data.published.source_folder import SourceFolder, numbered, read_table, sha256_of

AUGMENTATION = Choice("scale_and_aspect", {"size": 299})
"""That of FedVC, section 6.5."""
IMAGES = "train_val_images"


@dataclass(frozen=True)
class Split:
    name: str
    archive: str
    table: str
    max_examples: int | None
    """N_max of a cell; None: by user."""


USER_120K = Split("inaturalist-user-120k", "inaturalist-user-120k", "federated_train_user_120k.csv", None)
GEO = {
    label: Split(f"inaturalist-geo-{label}", "inaturalist-geo", f"federated_train_geo_{label}.csv", most)
    for label, most in (("30k", 30_000), ("3k", 3_000), ("1k", 1_000), ("100", 100))
}


def materialize(split: Split, cache: Path, source: Path, progress: Progress | None = None) -> Path:  # noqa: ARG001
    folder = SourceFolder(source, split.name, "iNaturalist 2017 and its federated split")
    folder.find(IMAGES)
    train = folder.find_any(f"{split.archive}/{split.table}", split.table)
    if train is not None:
        test = folder.find(str((train.parent / "test.csv").relative_to(source)))
        made_from = sha256_of(train, test)
        return materialize_images(
            cache, split.name, source, AUGMENTATION, made_from, lambda: _published(folder, train, test)
        )
    tables = inaturalist_splits.Tables.in_folder(folder, split.table)
    return materialize_images(
        cache,
        split.name,
        source,
        AUGMENTATION,
        {**sha256_of(tables.train, tables.test, tables.locations), "max_examples": split.max_examples},
        lambda: _checked(folder, inaturalist_splits.read(tables, split.max_examples)),
    )


def _published(folder: SourceFolder, train: Path, test: Path) -> ImageRecords:
    rows = [
        read_table(train, ("user_id", "image_id", "class")),
        read_table(test, ("image_id", "class")),
    ]
    both = rows[0] + rows[1]
    paths = _paths_of(folder, [row["image_id"] for row in both])
    classes = numbered([row["class"] for row in both])
    count = len(rows[0])
    users = [row["user_id"] for row in rows[0]]
    return SplitImages(paths[:count], classes[:count], users).followed_by(
        SplitImages(paths[count:], classes[count:], [""] * len(rows[1]))
    )


def _paths_of(folder: SourceFolder, image_ids: list[str]) -> list[str]:
    """The tables name images, not the folders of their species: those are looked through once."""
    wanted, found = set(image_ids), {}
    for images in (IMAGES, "test2017"):
        for place, _, names in os.walk(folder.path / images):
            for name in names:
                image_id = name.partition(".")[0]
                if image_id in wanted:
                    found[image_id] = str(Path(place, name).relative_to(folder.path))
    missing = [image_id for image_id in image_ids if image_id not in found]
    if missing:
        raise PopulationError(
            f"{folder.data_set}: {len(missing)} of {len(image_ids)} images are missing, the first {missing[0]}.jpg, "
            f"which is nowhere below {folder.path / IMAGES}; unpack the images of {folder.publisher} there"
        )
    return [found[image_id] for image_id in image_ids]


def _checked(folder: SourceFolder, found: ImageRecords) -> ImageRecords:
    folder.check_images(folder.path, [os.fsdecode(path) for path in found.paths.tolist()])
    return found
