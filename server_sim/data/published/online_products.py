"""Stanford Online Products: 22,634 products on sale, half of them only in the test (Song et al. 2016; FedSS, section 4.3).

In `data.source`, or in Stanford_Online_Products/ below it as the archive has it:

    Ebay_train.txt, Ebay_test.txt    image_id class_id super_class_id path, separated by blanks
    bicycle_final/..., ...           the images, at these paths

Clients are FedSS's: 100 images of 20 products each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ondevice.contract.choice import Choice
from server_sim.data.partitioners.few_classes import FewClasses
from server_sim.data.partitioners.partitioner import Pool
from server_sim.data.population import Progress
from server_sim.data.published.image_population import (
    SEED,
    ImageRecords,
    SplitImages,
    client_names,
    materialize_images,
)
from server_sim.data.published.source_folder import SourceFolder, numbered, read_table, sha256_of

NAME = "stanford-online-products"
AUGMENTATION = Choice("random_crop", {"resized": 256, "size": 224})
CLIENTS = FewClasses(examples_per_client=100, classes_per_client=20)
"""59,551 images make 596 clients."""


def materialize(cache: Path, source: Path, progress: Progress | None = None) -> Path:  # noqa: ARG001 - it takes seconds
    folder = SourceFolder(source, NAME, "Stanford Online Products")
    train = folder.find("Ebay_train.txt", "Stanford_Online_Products/Ebay_train.txt")
    root = train.parent
    test = folder.find(str((root / "Ebay_test.txt").relative_to(source)))

    def read() -> ImageRecords:
        rows = [read_table(table, ("image_id", "class_id", "path"), delimiter=" ") for table in (train, test)]
        both = rows[0] + rows[1]
        paths = [row["path"] for row in both]
        folder.check_images(root, paths)
        classes = numbered([row["class_id"] for row in both])
        count = len(rows[0])
        train_part = SplitImages(paths[:count], classes[:count], _clients(classes[:count]))
        return train_part.followed_by(SplitImages(paths[count:], classes[count:], [""] * len(rows[1])))

    return materialize_images(cache, NAME, root, AUGMENTATION, sha256_of(train, test), read)


def _clients(classes: list[str]) -> list[str]:
    labels = np.unique(classes, return_inverse=True)[1]
    return client_names(CLIENTS.owners(Pool(labels, np.zeros_like(labels)), np.random.default_rng(SEED)))
