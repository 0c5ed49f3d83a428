"""A backend of several programs, one per length of texts: every micro-batch goes through the shortest that holds it.

Examples keep their order and their micro-batches, so nothing that is drawn depends on it, and the numbers are those of the
longest program but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ondevice.backends import Backend
from ondevice.backends.pieces import check_features
from ondevice.contract.artifact import Artifact
from ondevice.contract.artifacts.lengths import Lengths
from ondevice.contract.step_signature import Arrays, symbol_values
from ondevice.contract.vocabulary import FloatArray

OpenOne = Callable[[Artifact], Backend]
"""Opens the programs of an artifact as if all texts had one length."""


def open_every_length(artifact: Artifact, open_one: OpenOne) -> Backend:
    """The artifact on the runtime of `open_one`, whether it has one length or several."""
    lengths = artifact.manifest.lengths
    return open_one(artifact) if lengths is None else PerLengthBackend(artifact, lengths, open_one)


class PerLengthBackend:
    """The programs of a length are opened when a text first needs them."""

    def __init__(self, artifact: Artifact, lengths: Lengths, open_one: OpenOne) -> None:
        self.signature = artifact.signature
        self.micro_batch: int | None = artifact.micro_batch
        self._embedding = artifact.embedding
        self._lengths = lengths
        self._artifact, self._open_one = artifact, open_one
        self._opened: dict[int, Backend] = {}

    def step(self, arrays: Arrays) -> Arrays:
        symbol_values(self.signature, arrays)
        places = self._lengths.places(self.signature, arrays)
        size = self._lengths.holding(int(places.max(initial=0)))
        return self._of(size).step(self._lengths.cut(arrays, size))

    def embed(self, arrays: Arrays) -> FloatArray:
        """Examples of one length together: nothing is drawn, so their order is free."""
        check_features(self.signature, arrays)
        places = self._lengths.places(self.signature, arrays)
        # Where an example has an embedding per place, those behind a text stay 0, as the longest program has them.
        embeddings = np.zeros((len(places), *self._embedding), np.float32)
        of_examples = {spec.name for spec in self.signature.features}
        shortest = np.searchsorted(self._lengths.sizes, places)
        for at, size in enumerate(self._lengths.sizes):
            chosen = shortest == at
            if chosen.any():
                some = {
                    name: array[chosen] if name in of_examples else array for name, array in arrays.items()
                }
                found = self._of(size).embed(self._lengths.cut(some, size))
                embeddings[chosen, : found.shape[1]] = found
        return embeddings

    def _of(self, size: int) -> Backend:
        if size not in self._opened:
            self._opened[size] = self._open_one(self._artifact.of_length(size))
        return self._opened[size]
