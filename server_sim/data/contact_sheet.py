"""A picture of a population's classes: some of them in rows, a few training images of each, as the clients hold them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ondevice.contract.vocabulary import IMAGES
from server_sim.data.population import Population

_NUM_CLASSES, _IMAGES_PER_CLASS = 20, 12


def contact_sheet(population: Population, path: Path) -> None:
    """`path` says the format by its ending.  The glyphs have a sheet of their own, by face."""
    num_classes = min(_NUM_CLASSES, population.num_classes)
    classes = np.linspace(0, population.num_classes - 1, num_classes).astype(int).tolist()
    channels, height, width = population.image_shape
    cells = np.full((num_classes, height, _IMAGES_PER_CLASS, width, channels), 255, np.uint8)
    labels = np.asarray(population.train.labels)
    for row, class_id in enumerate(classes):
        for column, example in enumerate(np.flatnonzero(labels == class_id)[:_IMAGES_PER_CLASS]):
            cells[row, :, column] = np.moveaxis(population.train.features[IMAGES][example], 0, -1)
    sheet = cells.reshape(num_classes * height, _IMAGES_PER_CLASS * width, channels)
    figure = Figure(figsize=(9, 0.48 * num_classes + 1.2), layout="constrained")
    axes = figure.subplots()
    grey = sheet[..., 0] if channels == 1 else sheet
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="equal")
    names = [population.class_names[class_id][:40] for class_id in classes]
    # A name may hold a dollar sign, which would start a formula.
    axes.set_yticks(np.arange(num_classes) * height + height / 2 - 0.5, names, parse_math=False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    shown = f"{num_classes} of {population.num_classes:,} classes, up to {_IMAGES_PER_CLASS} images of each"
    axes.set_title(f"{population.name}: {shown}", parse_math=False)
    figure.savefig(path, dpi=150)
