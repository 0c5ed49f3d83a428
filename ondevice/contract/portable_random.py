"""Random draws that come out the same in Python and in C++: SplitMix64, and three ways to use it.

The generator is Steele, Lea and Flood's SplitMix64 (OOPSLA 2014): a counter that grows by the golden-ratio constant, and a
mixer.  It was chosen because it is ten lines in any language, has no platform-dependent part, and seeds well from small
integers.  It hides nothing from someone who knows the seed; the seed is the client's secret.

    stream(seed, round, purpose):  state = mix(mix(mix(seed) + round) + purpose)      (all modulo 2^64)
    next:                          state += 0x9E3779B97F4A7C15; return mix(state)
    below(bound):                  Lemire's unbiased multiply-and-reject on 64 bits

Randomness is a pure function of (seed, round, purpose): a resumed or repeated round draws the same values.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ondevice.contract.vocabulary import IntArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """Separates the draws of one client and round from each other."""

    NEGATIVES = 0
    FIRST_EPOCH = 1
    """The order of examples in epoch e is drawn with purpose FIRST_EPOCH + e."""


class PortableRandom:
    """One stream of SplitMix64."""

    def __init__(self, seed: int, round_index: int = 0, purpose: int = 0) -> None:
        self._state = _mix((_mix((_mix(seed & _MASK) + round_index) & _MASK) + purpose) & _MASK)

    def next(self) -> int:
        """64 random bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return _mix(self._state)

    def below(self, bound: int) -> int:
        """Uniform in [0, bound)."""
        product = self.next() * bound
        if product & _MASK < bound:
            reject_below = (-bound & _MASK) % bound
            while product & _MASK < reject_below:
                product = self.next() * bound
        return product >> 64

    def subset(self, size: int, population: int) -> IntArray:
        """`size` distinct numbers out of [0, population), sorted; every subset equally likely (Floyd's algorithm)."""
        if not 0 <= size <= population:
            raise ValueError(f"cannot draw {size} distinct numbers out of {population}")
        chosen: set[int] = set()
        for last in range(population - size, population):
            drawn = self.below(last + 1)
            chosen.add(last if drawn in chosen else drawn)
        return np.array(sorted(chosen), np.int64)

    def permutation(self, size: int) -> IntArray:
        """A random order of 0..size-1 (Fisher and Yates, from the end)."""
        order = list(range(size))
        for last in range(size - 1, 0, -1):
            drawn = self.below(last + 1)
            order[last], order[drawn] = order[drawn], order[last]
        return np.array(order, np.int64)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
