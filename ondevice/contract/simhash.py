"""SimHash (Charikar 2002): vectors at a small angle fall into the same bucket, in the server's tables as on the client.

    h(x) = sign(A x),  A [K, d] of normal numbers;   Pr[h(x) = h(y)] = (1 − θ_xy / π)^K

L tables have a matrix each.  A bucket is known by one number: table · 2^K + the bits of h.

A row's length counts for an inner product and not for an angle.  With a `norm_bound` M, both sides are changed so that it
does (Neyshabur and Srebro 2015, after the asymmetric transforms of Shrivastava and Li 2014):

    row w -> [w / M, √(1 − |w / M|²)]       query x -> [x / |x|, 0]

Then the cosine of the two is x·w / (M |x|).  A row longer than M is taken to be as long as M.

Server and clients make the same matrix from its seed.  An entry is the sum of twelve uniform numbers of 16 bits (Irwin and
Hall), near enough to normal, and the same number in every language.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ondevice.contract.portable_random import PortableRandom
from ondevice.contract.vocabulary import FloatArray, IntArray

MAX_BITS = 30
_BLOCK = 65_536
"""Vectors hashed at a time."""


@dataclass(frozen=True)
class SimHash:
    """The hash functions of L tables over vectors of `dim` numbers."""

    num_bits: int
    """K"""
    num_tables: int
    """L"""
    dim: int
    seed: int
    norm_bound: float | None = None
    """M, for inner products; None for angles."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_bits <= MAX_BITS:
            raise ValueError(f"num_bits is {self.num_bits}; expected 1 to {MAX_BITS}")
        if self.num_tables < 1 or self.dim < 1:
            raise ValueError(
                f"num_tables is {self.num_tables} and dim {self.dim}; expected 1 or more of both"
            )
        if self.norm_bound is not None and not 0 < self.norm_bound < np.inf:
            raise ValueError(f"norm_bound is {self.norm_bound}; expected a length above 0")

    @property
    def num_buckets(self) -> int:
        """Of all tables together."""
        return self.num_tables << self.num_bits

    def buckets_of_rows(self, rows: FloatArray) -> IntArray:
        """[n, dim] -> [n, L]"""
        return self._buckets(rows, are_rows=True)

    def buckets_of_queries(self, queries: FloatArray) -> IntArray:
        """[q, dim] -> [q, L]"""
        return self._buckets(queries, are_rows=False)

    @cached_property
    def _planes(self) -> FloatArray:
        """[dim (+ 1), L · K]"""
        width = self.dim + (self.norm_bound is not None)
        uniform = PortableRandom(self.seed).uniform(12 * width * self.num_tables * self.num_bits)
        # Whole numbers of 16 bits: their sum is exact in float32 too, in whatever order.
        whole = np.floor(uniform * 65_536).astype(np.float32).reshape(width, -1, 12)
        planes: FloatArray = whole.sum(2) - np.float32(6 * 65_535)
        return planes

    def _buckets(self, vectors: FloatArray, are_rows: bool) -> IntArray:
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise ValueError(f"vectors are {list(vectors.shape)}; expected [any, {self.dim}]")
        buckets = np.empty((len(vectors), self.num_tables), np.int64)
        powers = np.int64(1) << np.arange(self.num_bits, dtype=np.int64)
        first = np.arange(self.num_tables, dtype=np.int64) << self.num_bits
        for start in range(0, len(vectors), _BLOCK):
            block = self._transformed(vectors[start : start + _BLOCK], are_rows)
            bits = (block @ self._planes > 0).reshape(len(block), self.num_tables, self.num_bits)
            buckets[start : start + _BLOCK] = bits @ powers + first
        return buckets

    def _transformed(self, vectors: FloatArray, are_rows: bool) -> FloatArray:
        if self.norm_bound is None:
            return vectors
        if not are_rows:
            # The length of a query changes no sign.
            return np.pad(vectors, ((0, 0), (0, 1)))
        scaled = vectors / np.float32(self.norm_bound)
        lengths = np.sqrt((scaled * scaled).sum(1, keepdims=True))
        scaled /= np.maximum(lengths, 1)
        rest = np.sqrt(np.maximum(0, 1 - np.minimum(lengths, 1) ** 2))
        return np.concatenate([scaled, rest.astype(np.float32)], 1)
