"""Spreadout (Yu et al. 2020, "Federated Learning with Only Positive Labels"): classes that lie near are pushed apart.

For the directions u = w / |w| of a table's rows, and N(c) the nearest other rows of row c, the penalty is

    r_c = Σ_{j in N(c)} max(0, margin − ‖u_c − u_j‖)²

and row c moves against its gradient, the others held fixed.  Only the directions count, as with cosine logits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray

_TINY = np.float32(1e-12)
"""A row of no length has no direction, and two equal rows have none between them: neither is pushed."""


def directions_of(rows: FloatArray) -> FloatArray:
    directions: FloatArray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _TINY)
    return directions


def nearest_others(
    ids: IntArray, queries: FloatArray, blocks: Iterable[FloatArray], count: int
) -> FloatArray:
    """The directions [q, count, d] of the rows that are nearest to the rows `ids`, whose directions are `queries` [q, d].

    Exact, one block of the table at a time.  Where there are fewer others, the rest is as far away as can be.
    """
    cosines = np.full((len(ids), count), -1, np.float32)
    directions = np.repeat(-queries[:, None], count, axis=1)
    start = 0
    for block in blocks:
        found = queries @ block.T
        inside = np.flatnonzero((ids >= start) & (ids < start + len(block)))
        # A row is not among its own others.
        found[inside, ids[inside] - start] = -np.inf
        near = np.argpartition(-found, min(count, len(block)) - 1, axis=1)[:, :count]
        cosines = np.concatenate([cosines, np.take_along_axis(found, near, axis=1)], axis=1)
        directions = np.concatenate([directions, block[near]], axis=1)
        kept = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        cosines = np.take_along_axis(cosines, kept, axis=1)
        directions = np.take_along_axis(directions, kept[:, :, None], axis=1)
        start += len(block)
    return directions


def spreadout_gradient(rows: FloatArray, near: FloatArray, margin: float) -> FloatArray:
    """∇ r_c of every row [q, d], given the directions of its nearest others [q, k, d]."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _TINY)
    own = rows / lengths
    between = own[:, None] - near
    distances = np.linalg.norm(between, axis=2, keepdims=True)
    pull = np.maximum(np.float32(margin) - distances, 0) / np.maximum(distances, _TINY)
    slope = -2 * (pull * between).sum(axis=1)
    # Along the row itself nothing changes: only its direction counts.
    slope -= (slope * own).sum(axis=1, keepdims=True) * own
    gradient: FloatArray = slope / lengths
    return gradient
