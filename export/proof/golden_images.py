"""The images that a step is proved on: flat, nearly flat, edges and noise.

Noise alone proves little.  Photographs have saturated skies, and icons and scans are mostly one colour: there GroupNorm
divides by a small deviation, sums are of equal numbers that all round the same way, and what a kernel loses in a
difference of large numbers shows.  A middle grey is left out: normalised it is 0, and gradients grow by 1/√ε per layer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

WHITE, BLACK = 255, 0
Pixels = npt.NDArray[np.uint8]
Shape = tuple[int, int, int]
Draw = Callable[[np.random.Generator, Shape], Pixels]


def patchwork(random: np.random.Generator, shape: Shape) -> Pixels:
    """Upper half white with a black quarter, lower half noise: every kind in one picture, for a micro-batch of one."""
    image = noise(random, shape)
    image[:, : shape[1] // 2] = WHITE
    image[:, : shape[1] // 2, : shape[2] // 2] = BLACK
    return image


def nearly_flat(random: np.random.Generator, shape: Shape) -> Pixels:
    """White with one black pixel."""
    image = white(random, shape)
    image[:, random.integers(shape[1]), random.integers(shape[2])] = BLACK
    return image


def white(_: np.random.Generator, shape: Shape) -> Pixels:
    return np.full(shape, WHITE, np.uint8)


def black(_: np.random.Generator, shape: Shape) -> Pixels:
    return np.full(shape, BLACK, np.uint8)


def grey(random: np.random.Generator, shape: Shape) -> Pixels:
    return np.full(shape, random.choice([random.integers(26, 103), random.integers(153, 230)]), np.uint8)


def upright_edge(random: np.random.Generator, shape: Shape) -> Pixels:
    """Black on the left, white on the right."""
    image = white(random, shape)
    image[:, :, : random.integers(1, max(2, shape[2]))] = BLACK
    return image


def level_edge(random: np.random.Generator, shape: Shape) -> Pixels:
    """White above, black below."""
    image = black(random, shape)
    image[:, : random.integers(1, max(2, shape[1]))] = WHITE
    return image


def noise(random: np.random.Generator, shape: Shape) -> Pixels:
    return random.integers(0, 256, shape, np.uint8)


KINDS: tuple[Draw, ...] = (patchwork, nearly_flat, white, upright_edge, grey, level_edge, black, noise)
"""The golden step takes the first ones; after the last come more of noise."""


def kind_of(position: int) -> Draw:
    """What the image at a position of a batch shows."""
    return KINDS[position] if position < len(KINDS) else noise
