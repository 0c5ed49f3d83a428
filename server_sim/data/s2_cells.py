"""Cells of the S2 grid (s2geometry.io): the globe as six faces of a cube, each divided into four, thirty times over.

A leaf's id is 3 bits of face, 60 bits of the leaf's place on a Hilbert curve, and a 1.  The cell at level l that holds it
shares the first 3 + 2 l bits, so a cell is a range of ids.  Whole arrays at a time, and the same ids as Google's library.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint64]

LEAF_LEVEL = 30

_SWAPPED, _INVERTED = 1, 2
_POSITION = np.array([[0, 1, 3, 2], [0, 3, 1, 2], [2, 3, 1, 0], [2, 1, 3, 0]])
"""Orientation of the curve in a cell, and quadrant (2 i + j) -> the quadrant's position on the curve."""
_ORIENTATION = np.array([_SWAPPED, 0, 0, _INVERTED | _SWAPPED])
"""How the curve turns in the quadrant at each position."""


def leaf_ids(places: NDArray[np.float64]) -> Ids:
    """[N] of [N, 2] latitudes and longitudes in degrees."""
    latitude, longitude = np.radians(places).T
    x, y = np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude)
    point = np.stack([x, y, np.sin(latitude)])
    axis = np.abs(point).argmax(0)
    main = np.take_along_axis(point, axis[None], 0)[0]
    face = axis + 3 * (main < 0)
    x, y, z = point / main
    # On each face, the two other axes over the main one, turned so that the curve goes on from face to face.
    u = np.choose(face, [y, -x, -x, z, z, -y])
    v = np.choose(face, [z, z, -y, y, -x, -x])
    i, j = _grid_line(u), _grid_line(v)
    orientation = face & _SWAPPED
    ids = face.astype(np.uint64)
    for bit in range(LEAF_LEVEL - 1, -1, -1):
        quadrant = ((i >> bit) & 1) * 2 + ((j >> bit) & 1)
        position = _POSITION[orientation, quadrant]
        ids = (ids << np.uint64(2)) | position.astype(np.uint64)
        orientation = orientation ^ _ORIENTATION[position]
    leaves: Ids = (ids << np.uint64(1)) | np.uint64(1)
    return leaves


def cell_of(leaves: Ids, level: int) -> Ids:
    """The cell at this level that holds each leaf: its first 3 + 2 l bits, a 1, and zeros."""
    last = np.uint64(1) << np.uint64(2 * (LEAF_LEVEL - level))
    return (leaves & ~(last * np.uint64(2) - np.uint64(1))) | last


def token_of(cell: int) -> str:
    """As people write it: hexadecimal digits without the zeros at the end."""
    return f"{cell:016x}".rstrip("0")


def adaptive_cells(places: NDArray[np.float64], most: int) -> tuple[NDArray[np.int64], list[str]]:
    """The number of the cell that each example falls into, and the cells' names.

    A cell is divided into its four as long as it holds more than `most` examples (Hsu, Qi and Brown 2020, section 4.1).  A
    leaf, of a square centimetre, that still holds more is dealt into several of at most that many.
    """
    leaves = leaf_ids(places)
    names = np.empty(len(leaves), object)
    undecided = np.arange(len(leaves))
    for level in range(LEAF_LEVEL + 1):
        cells, inverse, counts = np.unique(
            cell_of(leaves[undecided], level), return_inverse=True, return_counts=True
        )
        tokens = np.array([token_of(cell) for cell in cells.tolist()], object)
        fits = counts[inverse] <= most
        names[undecided[fits]] = tokens[inverse[fits]]
        undecided = undecided[~fits]
    for leaf in np.unique(leaves[undecided]):
        inside = undecided[leaves[undecided] == leaf]
        for part, start in enumerate(range(0, len(inside), most)):
            names[inside[start : start + most]] = f"{token_of(int(leaf))}-{part}"
    found, numbers = np.unique(names.astype(str), return_inverse=True)
    return numbers.astype(np.int64), found.tolist()


def _grid_line(coordinate: NDArray[np.float64]) -> NDArray[np.int64]:
    """−1..1 on a face -> 0..2^30 − 1, by the quadratic that makes cells nearly alike in size."""
    half_root = 0.5 * np.sqrt(1 + 3 * np.abs(coordinate))
    line = np.floor(2.0**LEAF_LEVEL * np.where(coordinate >= 0, half_root, 1 - half_root)).astype(np.int64)
    lines: NDArray[np.int64] = np.clip(line, 0, 2**LEAF_LEVEL - 1)
    return lines
