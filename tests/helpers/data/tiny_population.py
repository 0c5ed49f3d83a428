"""The tiny federation's data as a population on disk: 4 clients, 20 classes, 8 x 8 images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from helpers.federations.tiny_federation import TinyFederation
from server_sim.data.population import Population, Records, open_population, write_population

NUM_CLIENTS, EXAMPLES_PER_CLIENT = 4, 11


def make_tiny_population(directory: Path) -> Population:
    """Every class is held by somebody; the test split has an image of each."""
    num_classes = TinyFederation.num_classes
    train = [
        (client, (5 * client + example) % num_classes)
        for client in range(NUM_CLIENTS)
        for example in range(EXAMPLES_PER_CLIENT)
    ]
    classes = [label for _, label in train] + list(range(num_classes))
    records = Records(
        classes=[f"{label:02d}" for label in classes],
        users=[str(client) for client, _ in train] + [""] * num_classes,
        is_test=[False] * len(train) + [True] * num_classes,
    )
    shape = TinyFederation.spec.image_shape
    images = np.random.default_rng(0).integers(0, 256, (len(classes), *shape), np.uint8)
    write_population(
        directory, records, lambda rows: images[rows], name="tiny", image_shape=shape, seed=0, recipe={}
    )
    return open_population(directory)
