"""Features that are made when they are asked for, such as images decoded from files: what a client may say to them.

Such a feature is asked for examples like an array.  It is told two things that an array need not know: the round, since a
view that is drawn by chance is drawn anew in every round; and what will be asked for next, so that it can be ready by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from ondevice.contract.vocabulary import ExampleSet, IntArray

BATCHES_AHEAD = 2
"""That are being made while one is trained on; memory holds these and no more."""


@runtime_checkable
class LazyFeature(Protocol):
    """Indexed like an array [N, ...]."""

    def in_round(self, private_seed: int, round_index: int) -> Any:
        """The same feature as this client sees it in this round: a function of the two and of an example's position."""
        ...

    def prepare(self, positions: IntArray) -> None:
        """These will be asked for soon."""
        ...


def in_round(examples: ExampleSet, private_seed: int, round_index: int) -> ExampleSet:
    """The examples as a client sees them in one round; arrays are what they are."""
    if not _lazy(examples):
        return examples
    features = {
        name: feature.in_round(private_seed, round_index) if isinstance(feature, LazyFeature) else feature
        for name, feature in examples.features.items()
    }
    return replace(examples, features=features)


def announced(examples: ExampleSet, batches: Iterator[IntArray]) -> Iterator[IntArray]:
    """The same batches; features hear of each while those before it are trained on.  The first are announced at once."""
    lazy = _lazy(examples)
    if not lazy:
        return batches
    coming: deque[IntArray] = deque()

    def announce_next() -> None:
        batch = next(batches, None)
        if batch is not None:
            coming.append(batch)
            for feature in lazy:
                feature.prepare(batch)

    def in_turn() -> Iterator[IntArray]:
        while coming:
            batch = coming.popleft()
            announce_next()
            yield batch

    for _ in range(BATCHES_AHEAD):
        announce_next()
    return in_turn()


def _lazy(examples: ExampleSet) -> list[LazyFeature]:
    return [feature for feature in examples.features.values() if isinstance(feature, LazyFeature)]
