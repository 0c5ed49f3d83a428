"""Images whose authors are not known, dealt to clients: a population of arrays that were fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.vocabulary import IntArray
from server_sim.data.partitioners import NOBODY, Pool
from server_sim.data.partitioners.dirichlet import Dirichlet
from server_sim.data.population import Progress, Records, write_population

IMAGE_SIZE = 32
"""What smaller images are padded to: the size of the glyphs, so that their extractor is one to start from."""


@dataclass(frozen=True)
class LabelledImages:
    images: NDArray[np.uint8]
    """[n, height, width]"""
    labels: IntArray
    is_test: NDArray[np.bool_]
    class_names: list[str]


def padded(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[n, 1, 32, 32], with the picture in the middle."""
    height, width = (IMAGE_SIZE - side for side in images.shape[1:])
    borders = ((0, 0), (height // 2, height - height // 2), (width // 2, width - width // 2))
    return np.pad(images, borders)[:, None]


def write_dealt(
    directory: Path,
    data: LabelledImages,
    clients: Dirichlet,
    *,
    name: str,
    recipe: dict[str, Any],
    attribution: str,
    progress: Progress | None = None,
    seed: int = 0,
) -> None:
    """The training images dealt to Dirichlet clients; a few that do not divide evenly are left out."""
    train = np.flatnonzero(~data.is_test)
    owners = np.full(len(data.labels), NOBODY)
    owners[train] = clients.owners(
        Pool(data.labels[train], np.zeros(len(train), np.int64)), np.random.default_rng(seed)
    )
    kept = np.flatnonzero(data.is_test | (owners != NOBODY))
    digits = len(str(clients.num_clients - 1))
    images = padded(data.images)
    write_population(
        directory,
        Records(
            classes=[data.class_names[label] for label in data.labels[kept].tolist()],
            users=[f"client {owner:0{digits}d}" for owner in owners[kept].tolist()],
            is_test=data.is_test[kept].tolist(),
        ),
        lambda rows: images[kept[rows]],
        name=name,
        image_shape=(1, IMAGE_SIZE, IMAGE_SIZE),
        seed=seed,
        recipe=recipe,
        attribution=attribution,
        progress=progress,
    )
