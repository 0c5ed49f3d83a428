"""A shape under random shift, rotation, size, blur and noise: the 32 x 32 images of the glyphs data sets.

An image is a pure function of its shape and its `Distortions` row.  Rows are drawn for the whole data set at once, so an
image does not depend on which others it is rendered with, in what order, or by which process.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from server_sim.data.glyphs.alphabet import SHAPE_BOX, SHAPE_SIZE

IMAGE_SIZE = 32

# Drawn uniformly.  Chosen on contact sheets: as varied as still reads without effort.
RANGES = {
    "shift": (-2.0, 2.0),  # pixels, right and down
    "rotation": (-12.0, 12.0),  # degrees
    "glyph_size": (19.0, 27.0),  # pixels of the longer side
    "blur": (0.0, 0.25),  # weight of each neighbour in a three-tap kernel; 0.25 is a binomial blur
    "noise": (4.0, 24.0),  # standard deviation in grey levels
}
_NOISE_BANK = 1 << 20  # pixels of noise drawn once; an image reads a window of it at a random place


@dataclass(frozen=True)
class Distortions:
    """One row per image."""

    shift: NDArray[np.float64]  # [N, 2] pixels: right, down
    rotation: NDArray[np.float64]  # [N] radians
    glyph_size: NDArray[np.float64]  # [N] pixels
    blur: NDArray[np.float32]  # [N]
    noise: NDArray[np.float32]  # [N] grey levels
    noise_start: NDArray[np.int64]  # [N] where in the bank the window begins
    noise_bank: NDArray[np.float32]  # [_NOISE_BANK] standard normal


def draw_distortions(count: int, rng: np.random.Generator) -> Distortions:
    window = IMAGE_SIZE * IMAGE_SIZE
    return Distortions(
        shift=rng.uniform(*RANGES["shift"], (count, 2)),
        rotation=np.deg2rad(rng.uniform(*RANGES["rotation"], count)),
        glyph_size=rng.uniform(*RANGES["glyph_size"], count),
        blur=rng.uniform(*RANGES["blur"], count).astype(np.float32),
        noise=rng.uniform(*RANGES["noise"], count).astype(np.float32),
        noise_start=rng.integers(0, _NOISE_BANK - window, count),
        noise_bank=rng.standard_normal(_NOISE_BANK, dtype=np.float32),
    )


def render(
    shapes: Sequence[Image.Image], distortions: Distortions, rows: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Image i of the result is shapes[i] under distortion rows[i]: [len(rows), 1, 32, 32], ink bright on dark."""
    motions = _inverse_motions(distortions, rows).tolist()
    moved = [
        shape.transform((IMAGE_SIZE, IMAGE_SIZE), Image.Transform.AFFINE, motion, Image.Resampling.BILINEAR)
        for shape, motion in zip(shapes, motions, strict=True)
    ]
    pixels = np.frombuffer(b"".join(image.tobytes() for image in moved), dtype=np.uint8)
    images = _blur(pixels.reshape(-1, IMAGE_SIZE, IMAGE_SIZE).astype(np.float32), distortions.blur[rows])
    windows = np.lib.stride_tricks.sliding_window_view(distortions.noise_bank, IMAGE_SIZE * IMAGE_SIZE)
    noise = windows[distortions.noise_start[rows]].reshape(images.shape)
    noise *= distortions.noise[rows, None, None]
    images += noise
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)[:, None]


def _inverse_motions(distortions: Distortions, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where in the shape an image's pixel comes from, as Pillow asks: x' = a x + b y + c, y' = d x + e y + f.

    This is the inverse of "scale and rotate about the centre, then shift": [len(rows), 6].
    """
    zoom = SHAPE_BOX / distortions.glyph_size[rows]
    cos, sin = zoom * np.cos(distortions.rotation[rows]), zoom * np.sin(distortions.rotation[rows])
    x, y = IMAGE_SIZE / 2 + distortions.shift[rows].T  # where the shape's centre goes
    centre = SHAPE_SIZE / 2
    return np.stack([cos, sin, centre - cos * x - sin * y, -sin, cos, centre + sin * x - cos * y], axis=1)


def _blur(images: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """A three-tap blur (weight, 1 - 2 weight, weight) along both axes of [N, H, W], one weight per image."""
    side, middle = weight[:, None, None], 1 - 2 * weight[:, None, None]
    for _ in range(2):
        neighbours = side * images
        images = middle * images
        images[:, 1:] += neighbours[:, :-1]
        images[:, :-1] += neighbours[:, 1:]
        images = images.swapaxes(1, 2)  # the other axis next, and back at the end
    return images
