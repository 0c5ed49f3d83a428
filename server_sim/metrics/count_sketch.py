"""The count sketch (Charikar, Chen and Farach-Colton 2002): many numbers in a few small tables, each found again roughly.

Every table adds a number to the bucket of its id, times a random sign; what an id has is estimated by the median, or the
mean, over the tables (FedMLH, Algorithm 1).  FedMLH keeps no signs, since a bucket's label is a union and no sum: the
log-likelihood of a class is the mean over its buckets, which is the sketch's retrieval.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ondevice.contract.hashing.label_hashes import LabelHashes
from ondevice.contract.vocabulary import FloatArray, IntArray

Numbers = npt.NDArray[np.float64]


@dataclass
class CountSketch:
    """R tables of B buckets each, and a sign per id and table."""

    hashes: LabelHashes
    values: Numbers = field(init=False)
    """[R B]: bucket i of table j at j B + i."""

    def __post_init__(self) -> None:
        self.values = np.zeros(self.hashes.num_outputs)
        # Even or odd, by functions of their own: independent of the buckets.
        self._signs = LabelHashes(self.hashes.num_tables, 2, self.hashes.seed ^ 0x5349474E)

    def insert(self, ids: IntArray, amounts: Numbers) -> None:
        """Add to what these ids have."""
        signed = amounts[:, None] * self.signs(ids)
        np.add.at(self.values, self.hashes.outputs(ids), signed)

    def estimate(self, ids: IntArray, by: Literal["median", "mean"] = "median") -> Numbers:
        """[n]: what these ids have, roughly."""
        found = self.values[self.hashes.outputs(ids)] * self.signs(ids)
        return np.median(found, axis=1) if by == "median" else found.mean(axis=1)

    def signs(self, ids: IntArray) -> Numbers:
        """[n, R]: 1 or -1."""
        signs: Numbers = np.where(self._signs.buckets(ids) == 0, 1.0, -1.0)
        return signs


def retrieved_means(values: FloatArray, outputs: IntArray) -> FloatArray:
    """Retrieval by the mean, without signs: [b, R B] values and the [n, R] places of every id -> [b, n].

    Table by table, so that memory holds one number per example and id.
    """
    total: FloatArray = values[:, outputs[:, 0]]
    for places in outputs.T[1:]:
        total += values[:, places]
    total *= np.float32(1 / outputs.shape[1])
    return total
