"""R independent 2-universal hash functions that throw classes into B buckets each (FedMLH, Algorithm 2, lines 2-3).

    h_j(c) = ((a_j c + b_j) mod P) mod B,   P = 2^31 - 1,   a_j from 1..P-1, b_j from 0..P-1        (Carter and Wegman 1979)

Two classes fall into one bucket of a table with a probability of at most 1/B.  Products stay below 2^62, so the functions
are the same in numpy and in C++.  The server makes them of a seed and broadcasts it with a fingerprint of the coefficients:
a client that would hash in another way says so instead of training on other buckets than everybody else.

Bucket i of table j is output j B + i of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ondevice.contract.portable_random import PortableRandom, mix
from ondevice.contract.vocabulary import IntArray

PRIME = (1 << 31) - 1
MOST_TABLES = 1024


@dataclass(frozen=True)
class LabelHashes:
    num_tables: int
    """R"""
    num_buckets: int
    """B"""
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_tables <= MOST_TABLES:
            raise ValueError(f"num_tables is {self.num_tables}; expected 1 to {MOST_TABLES}")
        if not 1 <= self.num_buckets < PRIME:
            raise ValueError(f"num_buckets is {self.num_buckets}; expected 1 to {PRIME - 1}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed is {self.seed}; expected 0 to 2^63 - 1")

    @cached_property
    def coefficients(self) -> IntArray:
        """[R, 2]: a and b of every table."""
        random = PortableRandom(self.seed)
        drawn = [(1 + random.below(PRIME - 1), random.below(PRIME)) for _ in range(self.num_tables)]
        return np.array(drawn, np.int64)

    @cached_property
    def fingerprint(self) -> int:
        """Of what decides every bucket, in 32 bits: a plan carries it as a number."""
        state = mix(self.num_buckets)
        for coefficient in self.coefficients.reshape(-1).tolist():
            state = mix(state + coefficient)
        return state >> 32

    @property
    def num_outputs(self) -> int:
        return self.num_tables * self.num_buckets

    def buckets(self, classes: IntArray) -> IntArray:
        """[n] classes -> [n, R]: the bucket of each in every table."""
        if classes.size and not (classes.min() >= 0 and classes.max() < PRIME):
            raise ValueError(
                f"classes reach from {classes.min()} to {classes.max()}; expected 0 to {PRIME - 1}"
            )
        multiplier, offset = self.coefficients.T
        found: IntArray = (classes[:, None] * multiplier + offset) % PRIME % self.num_buckets
        return found

    def outputs(self, classes: IntArray) -> IntArray:
        """[n] classes -> [n, R]: the outputs of the step that each stands for."""
        return self.buckets(classes) + np.arange(self.num_tables) * self.num_buckets


def enough_buckets(num_classes: int, num_tables: int, failure: float) -> int:
    """Lemma 2: the B from which no two of p classes share all R buckets, but with a probability of at most `failure`.

    Each of the p (p - 1) / 2 pairs collides everywhere with a probability of at most B^-R: B >= (p (p - 1) / 2δ)^(1/R).
    """
    if num_classes < 2 or num_tables < 1 or not 0 < failure < 1:
        raise ValueError(
            f"num_classes is {num_classes}, num_tables {num_tables} and failure {failure}; expected at least 2, at least 1, "
            "and a probability"
        )
    return int(np.ceil((num_classes * (num_classes - 1) / (2 * failure)) ** (1 / num_tables)))
