"""What a sampler sees, and what it gives: the protocol, and the arithmetic that samplers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ondevice.contract.messages.lookup import Lookup
from ondevice.contract.tokens import NUM_SPECIAL, TOKENS
from ondevice.contract.vocabulary import COLUMNS, ExampleSet, FloatArray, IntArray, RoundPlan, Rows, RowSample

ADJUST = "adjust"
"""The side array that is added to the logits: the one vector that tells the losses apart."""


class Questions(Protocol):
    """What a sampler may ask the server before it has its sample (`ondevice.client.questions`)."""

    @property
    def dim(self) -> int:
        """Entries of a row of the classifier's table."""
        ...

    def embeddings(self, ids: IntArray) -> FloatArray:
        """All places of the examples that take part through φ of this round, [any, d]; `ids` are rows that they read."""
        ...

    def look_up(self, lookup: Lookup) -> Rows:
        """The rows of the classifier's table that the server finds, with their ids."""
        ...


@dataclass(frozen=True)
class SamplingView:
    """What a client lets its sampler see.  None of it leaves the device but by the sampler's own questions."""

    plan: RoundPlan
    labels: IntArray
    private_seed: int = field(repr=False)
    numbers: Callable[[str], IntArray] = field(default=lambda name: _no_numbers(name), repr=False)
    """All values of a feature of whole numbers, of the examples that take part: ids of words, say."""
    questions: Questions | None = field(default=None, repr=False)
    """For samplers whose draw takes more than one exchange with the server."""


def _no_numbers(name: str) -> IntArray:
    raise ValueError(
        f"the client's examples have no feature {name!r} of whole numbers, which its sampler reads"
    )


def numbers_of(examples: ExampleSet, positions: IntArray) -> Callable[[str], IntArray]:
    """The `numbers` of a view: read when a sampler asks for them."""

    def numbers(name: str) -> IntArray:
        feature = examples.features.get(name)
        if feature is None or feature.dtype != np.int64:
            return _no_numbers(name)
        return feature[positions].reshape(-1)

    return numbers


class Sampler(Protocol):
    """Draws the rows of one client and round; the same view gives the same sample."""

    def draw(self, view: SamplingView) -> RowSample: ...

    def widest(self, num_positives: int, num_rows: int) -> int:
        """The most rows that a client with so many classes can ask for."""
        ...


def positives_of(labels: IntArray, num_rows: int, what: str = "labels") -> IntArray:
    """P_k: the classes that the client holds, sorted."""
    positives = np.unique(labels)
    if not positives.size:
        raise ValueError("the client holds no examples, so it has no classes to ask for")
    if positives[0] < 0 or positives[-1] >= num_rows:
        raise ValueError(f"{what} reach from {positives[0]} to {positives[-1]}; expected 0 to {num_rows - 1}")
    return positives


def own_words(view: SamplingView, num_rows: int) -> IntArray:
    """P_k over a table of words that is read and predicted from: all words of both kinds, and the special tokens."""
    return np.union1d(positives_of(view.labels, num_rows), read_words(view, num_rows))


def read_words(view: SamplingView, num_rows: int) -> IntArray:
    """The words of the client's texts, and the special tokens, sorted."""
    return positives_of(np.concatenate([np.arange(NUM_SPECIAL), view.numbers(TOKENS)]), num_rows, TOKENS)


def columns_sample(ids: IntArray, adjust: FloatArray) -> RowSample:
    """A draw over the classifier's table."""
    return RowSample({COLUMNS: ids}, {ADJUST: adjust})
