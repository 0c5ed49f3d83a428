"""Icons -> grey pixels, with resvg; and which pictures are near copies of others."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from server_sim.data.fetched.icon_classes import Drawing
from server_sim.data.population_files import PopulationError

NEAR_COPY = 0.1
"""The share of the ink of two pictures that differs, below which one is a copy of the other."""


def render(drawing: Drawing, size: int) -> NDArray[np.uint8]:
    """uint8 [size, size]: ink is 255, as in the glyphs."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise PopulationError(
            "icons are rendered with resvg-py, which is not installed; run: pip install 'fedss-mobile[data]'"
        ) from None
    left, top, width, height = drawing.icon_set.boxes[drawing.name]
    document = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" color="#000" '
        f'viewBox="{left} {top} {width} {height}" width="{size}" height="{size}">'
        f"{drawing.icon_set.bodies[drawing.name]}</svg>"
    )
    # The machine's fonts would make the pixels depend on the machine.
    png = svg_to_bytes(svg_string=document, background="#ffffff", skip_system_fonts=True)
    with Image.open(io.BytesIO(bytes(png))) as image:
        return 255 - np.asarray(image.convert("L"))


def without_near_copies(images: NDArray[np.uint8]) -> list[int]:
    """Of pictures of one class, in their order, those that show ink and are no near copy of one before."""
    ink = images.reshape(len(images), -1).astype(np.float32)
    totals = ink.sum(axis=1)
    kept: list[int] = []
    for number, picture in enumerate(ink):
        if totals[number] == 0:
            continue
        differences = np.abs(ink[kept] - picture).sum(axis=1)
        if (differences >= NEAR_COPY * (totals[kept] + totals[number])).all():
            kept.append(number)
    return kept
