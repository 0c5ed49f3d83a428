"""A shape under random shift, rotation, size, blur and noise: the 32 x 32 images of the glyphs data sets.

An image is a pure function of its shape and its `Distortions` row.  Rows are drawn for the whole data set at once, so an
image does not depend on which others it is rendered with, in what order, or by which process.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from server_sim.glyph_alphabet import SHAPE_BOX, SHAPE_SIZE

IMAGE_SIZE = 32

# The ranges of the distortions.  Chosen on contact sheets: as varied as still reads without effort.
MAX_SHIFT = 2.0  # pixels, either way
MAX_ROTATION = 12.0  # degrees, either way
GLYPH_SIZE = (19.0, 27.0)  # pixels of the longer side
MAX_BLUR = 0.25  # weight of each neighbour in a three-tap kernel; 0.25 is a binomial blur
NOISE = (4.0, 24.0)  # standard deviation in grey levels
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
        shift=rng.uniform(-MAX_SHIFT, MAX_SHIFT, (count, 2)),
        rotation=np.deg2rad(rng.uniform(-MAX_ROTATION, MAX_ROTATION, count)),
        glyph_size=rng.uniform(*GLYPH_SIZE, count),
        blur=rng.uniform(0, MAX_BLUR, count).astype(np.float32),
        noise=rng.uniform(*NOISE, count).astype(np.float32),
        noise_start=rng.integers(0, _NOISE_BANK - window, count),
        noise_bank=rng.standard_normal(_NOISE_BANK, dtype=np.float32),
    )


def render(
    shapes: Sequence[Image.Image], distortions: Distortions, rows: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Image i of the result is shapes[i] under distortion rows[i]: [len(rows), 1, 32, 32], ink bright on dark."""
    moved = [_move(shape, distortions, row) for shape, row in zip(shapes, rows, strict=True)]
    pixels = np.frombuffer(b"".join(moved), dtype=np.uint8).reshape(-1, IMAGE_SIZE, IMAGE_SIZE)
    images = _blur(pixels.astype(np.float32), distortions.blur[rows])
    windows = np.lib.stride_tricks.sliding_window_view(distortions.noise_bank, IMAGE_SIZE * IMAGE_SIZE)
    noise = windows[distortions.noise_start[rows]].reshape(images.shape)
    images += distortions.noise[rows, None, None] * noise
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)[:, None]


def _move(shape: Image.Image, distortions: Distortions, row: int) -> bytes:
    """Scale, rotate and shift by one affine resampling."""
    # Pillow asks where in the shape an image pixel comes from: the inverse of the motion, about the centres.
    zoom = SHAPE_BOX / distortions.glyph_size[row]
    cos, sin = zoom * math.cos(distortions.rotation[row]), zoom * math.sin(distortions.rotation[row])
    x, y = IMAGE_SIZE / 2 + distortions.shift[row]
    centre = SHAPE_SIZE / 2
    inverse = (cos, sin, centre - cos * x - sin * y, -sin, cos, centre + sin * x - cos * y)
    return shape.transform(
        (IMAGE_SIZE, IMAGE_SIZE), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR
    ).tobytes()


def _blur(images: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """A three-tap blur (weight, 1 - 2 weight, weight) along both axes of [N, H, W], one weight per image."""
    side, middle = weight[:, None, None], 1 - 2 * weight[:, None, None]
    for axis in (1, 2):
        padding = [(0, 0), (0, 0), (0, 0)]
        padding[axis] = (1, 1)
        padded = np.pad(images, padding)
        before, after = np.delete(padded, [-2, -1], axis), np.delete(padded, [0, 1], axis)
        images = middle * images + side * (before + after)
    return images
