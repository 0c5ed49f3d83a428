"""SimHash (Charikar 2002): vectors at a small angle fall into the same bucket, in the server's tables as on the client.

    h(x) = sign(A x),  A [K, d] of normal numbers;   Pr[h(x) = h(y)] = (1 − θ_xy / π)^K

L tables have a matrix each.  A bucket is known by one number: table · 2^K + the bits of h.

A row's length counts for an inner product and not for an angle.  With a `norm_bound` M, both sides are changed so that it
does (Neyshabur and Srebro 2015, after the asymmetric transforms of Shrivastava and Li 2014):

    row w -> [w / M, √(1 − |w / M|²)]       query x -> [x / |x|, 0]

Then the cosine of the two is x·w / (M |x|).  A row longer than M is taken to be as long as M.

Server and clients make the same matrix from its seed.  An entry is the sum of twelve uniform numbers of 16 bits (Irwin and
Hall), near enough to normal, and the same whole number in every language.

A sign is all or nothing, so A x is computed without rounding: x becomes whole numbers of 20 bits, multiples of a power of
two that its largest entry decides, and sums of whole numbers below 2^53 are exact in whatever order a machine takes them.
So the same vector falls into the same bucket everywhere, and a sum of exactly 0 gives a bit of 0.  Vectors that differ in
their last bits, as embeddings of two runtimes do, may still fall to the two sides of a plane that they lie on: some other
rows are looked at then, and what is found was never more than a proposal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ondevice.contract.portable_random import PortableRandom, mix
from ondevice.contract.vocabulary import FloatArray, IntArray

MAX_BITS = 30
MAX_TABLES = 4096
MAX_DIM = 16_384
"""Of which sums are exact: 2^14 products below 2^20 · 2^19."""
_VECTOR_BITS = 20
_BLOCK = 1024
"""Vectors hashed at a time: what they give stays in the cache."""


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
        if not 1 <= self.num_tables <= MAX_TABLES or not 1 <= self.dim < MAX_DIM:
            raise ValueError(
                f"num_tables is {self.num_tables} and dim {self.dim}; "
                f"expected 1 to {MAX_TABLES} tables, and a dim of 1 to {MAX_DIM - 1}"
            )
        if self.norm_bound is not None and not 0 < self.norm_bound < np.inf:
            raise ValueError(f"norm_bound is {self.norm_bound}; expected a length above 0")

    @property
    def num_buckets(self) -> int:
        """Of all tables together."""
        return self.num_tables << self.num_bits

    @cached_property
    def fingerprint(self) -> int:
        """Of what decides a query's buckets, in 32 bits, whatever the vectors' size: the first entries of the planes stand
        for the seed, and for how planes are made of it."""
        state = mix(mix(self.num_bits) + self.num_tables)
        for entry in self._drawn(1)[0].tolist():
            state = mix(state + int(entry))
        return state >> 32

    def buckets_of_rows(self, rows: FloatArray) -> IntArray:
        """[n, dim] -> [n, L]"""
        return self._buckets(rows, are_rows=True)

    def buckets_of_queries(self, queries: FloatArray) -> IntArray:
        """[q, dim] -> [q, L]"""
        return self._buckets(queries, are_rows=False)

    @cached_property
    def _planes(self) -> npt.NDArray[np.float64]:
        """[dim (+ 1), L · K]"""
        return self._drawn(self.dim + (self.norm_bound is not None))

    def _drawn(self, width: int) -> npt.NDArray[np.float64]:
        uniform = PortableRandom(self.seed).uniform(12 * width * self.num_tables * self.num_bits)
        whole = np.floor(uniform * 65_536).reshape(width, -1, 12)
        planes: npt.NDArray[np.float64] = whole.sum(2) - 6 * 65_535
        return planes

    def _buckets(self, vectors: FloatArray, are_rows: bool) -> IntArray:
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise ValueError(f"vectors are {list(vectors.shape)}; expected [any, {self.dim}]")
        buckets = np.empty((len(vectors), self.num_tables), np.int64)
        powers = np.int64(1) << np.arange(self.num_bits, dtype=np.int64)
        first = np.arange(self.num_tables, dtype=np.int64) << self.num_bits
        for start in range(0, len(vectors), _BLOCK):
            block = self._transformed(vectors[start : start + _BLOCK], are_rows)
            bits = (_whole_numbers(block) @ self._planes > 0).reshape(
                len(block), self.num_tables, self.num_bits
            )
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


def _whole_numbers(vectors: FloatArray) -> npt.NDArray[np.float64]:
    """Each vector times the power of two that brings its largest entry to 20 bits, rounded."""
    _, exponents = np.frexp(np.abs(vectors).max(1, initial=0, keepdims=True))
    whole: npt.NDArray[np.float64] = np.rint(np.ldexp(vectors.astype(np.float64), _VECTOR_BITS - exponents))
    return whole
