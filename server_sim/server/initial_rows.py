"""The rows of a table at round 0, each a function of the seed and its id: a row that nobody touched need not be kept.

Random directions of one length.  Entry j of row i is made of 32 random bits, the half j mod 2 of the word

    mix(key + G (i w + j div 2 + 1)),   w = ceil(d / 2) words per row, key = mix(mix(seed) + number of the table)

of SplitMix64 (`ondevice.contract.portable_random`): the sum of its four bytes, which is close to normal, made odd so that no
row is zero and symmetric so that no direction is favoured.  Up to here all numbers are integers; what follows is one square
root, one division and one product per row or entry, which IEEE 754 rounds in one way only.  So the rows are the same bits on
every machine, whatever the order and the company in which they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondevice.contract.portable_random import GOLDEN, mix
from ondevice.contract.vocabulary import FloatArray, IntArray

_BLOCK = 512
"""Rows made at a time: what is mixed stays in the processor's cache."""
_PAIRS_OF_BYTES = np.uint64(0x00FF00FF00FF00FF)
_HALVES = np.uint64(0x0000FFFF0000FFFF)
_LOWEST_BITS = np.uint64(0x0000000100000001)
_CENTRE = 4 * 255 + 1


@dataclass(frozen=True)
class InitialRows:
    """Gives the rows of some ids, [k, dim]."""

    seed: int
    table_number: int
    """Tables of one experiment start from other rows."""
    dim: int
    length: float
    has_bias: bool
    """The last entry is a bias, which starts at 0."""

    def __call__(self, ids: IntArray) -> FloatArray:
        rows = np.empty((len(ids), self.dim), np.float32)
        for start in range(0, len(ids), _BLOCK):
            rows[start : start + _BLOCK] = self._block(ids[start : start + _BLOCK])
        return rows

    def _block(self, ids: IntArray) -> FloatArray:
        entries = 2 * _sums_of_bytes(self._words(ids)).view(np.int32)[:, : self.dim] - np.int32(_CENTRE)
        if self.has_bias:
            entries[:, -1] = 0
        squares = np.einsum("ij,ij->i", entries, entries, dtype=np.int64, casting="same_kind")
        scales = (self.length / np.sqrt(squares.astype(np.float64))).astype(np.float32)
        rows = entries.astype(np.float32)
        rows *= scales[:, None]
        return rows

    def _words(self, ids: IntArray) -> npt.NDArray[np.uint64]:
        key = mix(mix(self.seed) + self.table_number)
        per_row = -(-self.dim // 2)
        steps: npt.NDArray[np.uint64] = np.arange(1, per_row + 1, dtype=np.uint64)
        words = (ids.astype(np.uint64) * np.uint64(per_row))[:, None] + steps
        words *= np.uint64(GOLDEN)
        words += np.uint64(key)
        return _mixed(words)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`portable_random.mix` of every word, in place."""
    shifted = np.empty_like(words)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        words ^= shifted
        words *= np.uint64(factor)
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words


def _sums_of_bytes(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """In either half of every word: the sum of its four bytes, and one more where its lowest bit is set; in place."""
    odd = words & _LOWEST_BITS
    shifted = words >> np.uint64(8)
    shifted &= _PAIRS_OF_BYTES
    words &= _PAIRS_OF_BYTES
    words += shifted
    np.right_shift(words, np.uint64(16), out=shifted)
    words += shifted
    words &= _HALVES
    words += odd
    return words
