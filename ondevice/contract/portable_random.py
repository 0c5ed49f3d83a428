"""Random draws that come out the same in Python and in C++: SplitMix64, and five ways to use it.

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
import numpy.typing as npt

from ondevice.contract.vocabulary import FloatArray, IntArray

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """Separates the draws of one client and round from each other."""

    NEGATIVES = 0
    FIRST_EPOCH = 1
    """The order of examples in epoch e is drawn with purpose FIRST_EPOCH + e."""
    ROUNDING = 1 << 32
    """Beyond every epoch: what a transform rounds up or down."""
    EXAMPLES = (1 << 32) + 1
    """Which of its examples a client trains on."""
    AUGMENTATION = 1 << 33
    """Which part of example e is seen is drawn with purpose AUGMENTATION + e."""
    NOISE = 1 << 34
    """What dropout decides by in SGD step s of a round is drawn with purpose NOISE + s."""


class PortableRandom:
    """One stream of SplitMix64."""

    def __init__(self, seed: int, round_index: int = 0, purpose: int = 0) -> None:
        self._state = mix((mix((mix(seed & _MASK) + round_index) & _MASK) + purpose) & _MASK)

    def next(self) -> int:
        """64 random bits."""
        self._state = (self._state + GOLDEN) & _MASK
        return mix(self._state)

    def below(self, bound: int) -> int:
        """Uniform in [0, bound)."""
        product = self.next() * bound
        if product & _MASK < bound:
            reject_below = (-bound & _MASK) % bound
            while product & _MASK < reject_below:
                product = self.next() * bound
        return product >> 64

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """The next `count` draws as multiples of 2^-53 in [0, 1)."""
        uniform: npt.NDArray[np.float64] = (self._many(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return uniform

    def noise(self, count: int) -> FloatArray:
        """The next `count` draws as multiples of 2^-24 in [0, 1): float32 holds each of them, and 1 minus it, exactly."""
        numbers: FloatArray = (self._many(count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return numbers

    def _many(self, count: int) -> npt.NDArray[np.uint64]:
        steps = np.arange(1, count + 1, dtype=np.uint64)
        draws = _mixed(np.uint64(self._state) + steps * np.uint64(GOLDEN))
        self._state = (self._state + count * GOLDEN) & _MASK
        return draws

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


def mix(value: int) -> int:
    """SplitMix64's mixer, of the number modulo 2^64."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`mix` of each, in place: numpy's unsigned arrays wrap around as they should."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(31)
    return values
