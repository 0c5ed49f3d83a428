"""Texts of several lengths: an artifact may have a program per length, and a micro-batch takes the shortest that holds it.

The signature has the longest, and so has every array that anybody hands over: whoever knows nothing of lengths runs the
longest program, and is right.  Padding behind a text changes nothing, which export proves, so a program of fewer places
gives the same numbers for texts that fit into them.  It lies in a folder of its own, under its plain name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ondevice.contract.step_signature import Arrays, StepSignature
from ondevice.contract.vocabulary import IntArray


@dataclass(frozen=True)
class Lengths:
    """Which features are cut, all of them alike, and to how many places."""

    features: tuple[str, ...]
    """Their second size is a number of places, with padding behind the last that is used."""
    sizes: tuple[int, ...]
    """Ascending; the last is the signature's."""

    def __post_init__(self) -> None:
        if not self.features:
            raise ValueError("lengths name no feature; expected those that hold a text")
        check_sizes(self.sizes)

    @property
    def longest(self) -> int:
        return self.sizes[-1]

    @property
    def shorter(self) -> tuple[int, ...]:
        """Those that have a folder of their own."""
        return self.sizes[:-1]

    def check(self, signature: StepSignature) -> None:
        """ValueError unless the signature has these features at the longest size."""
        found = {spec.name: spec.shape[1:2] for spec in signature.features}
        for name in self.features:
            if found.get(name) != (self.longest,):
                raise ValueError(
                    f"lengths are {', '.join(map(str, self.sizes))} of {name}; the step takes "
                    f"{signature[name].describe() if name in found else 'no such feature'}"
                )

    def shortened(self, signature: StepSignature, size: int) -> StepSignature:
        """What a program of that length takes."""
        return StepSignature(
            tuple(
                replace(spec, shape=(spec.shape[0], size, *spec.shape[2:]))
                if spec.name in self.features
                else spec
                for spec in signature
            )
        )

    def places(self, signature: StepSignature, arrays: Arrays) -> IntArray:
        """Per example, how many places any of its texts uses."""
        used = [_places(arrays[name], signature[name].padding) for name in self.features]
        places: IntArray = np.max(used, axis=0)
        return places

    def holding(self, places: int) -> int:
        """The shortest length that holds a text of so many places."""
        return next(size for size in self.sizes if size >= places)

    def cut(self, arrays: Arrays, size: int) -> Arrays:
        """The first places of the texts; everything else as it is."""
        return {name: array[:, :size] if name in self.features else array for name, array in arrays.items()}

    def padded(self, signature: StepSignature, arrays: Arrays, size: int) -> dict[str, npt.NDArray[Any]]:
        """The same texts with padding behind their first places, all of which the first text uses."""
        padded = dict(arrays)
        for name in self.features:
            padding = signature[name].padding
            padded[name] = arrays[name].copy()
            padded[name][:, size:] = padding
            padded[name][0, size - 1] = padding + 1
        return padded


def check_sizes(sizes: Sequence[int]) -> None:
    """ValueError unless they are whole numbers from 1, each larger than the one before."""
    rising = all(before < after for before, after in pairwise(sizes))
    if not sizes or sizes[0] < 1 or not rising:
        raise ValueError(
            f"lengths are {', '.join(map(str, sizes)) or 'none'}; expected numbers from 1, each larger than the one before"
        )


def folder_of(size: int) -> str:
    """Where the files of a shorter length lie in the artifact."""
    return f"length-{size}"


def _places(texts: npt.NDArray[Any], padding: float) -> IntArray:
    """[b, length, ...] -> [b]: the last place that is not padding, counted from 1; 0 of a text that is nothing else."""
    used = (texts != padding).reshape(*texts.shape[:2], -1).any(axis=2)
    last = texts.shape[1] - np.argmax(used[:, ::-1], axis=1)
    places: IntArray = np.where(used.any(axis=1), last, 0)
    return places
