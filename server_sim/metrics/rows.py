"""Rows as metrics compare them: at length 1, and some at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondevice.contract.vocabulary import FloatArray

_BLOCK = 256
"""Queries compared at a time: bounds the memory."""


def unit_rows(rows: FloatArray) -> FloatArray:
    """Each at length 1, but for rows of zeros."""
    unit: FloatArray = rows / np.sqrt((rows * rows).sum(1, keepdims=True) + np.float32(1e-12))
    return unit


def blocks_of(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))
