"""Sparse examples of several classes each, collected one by one and written as a population: `ids`, `values`, `classes`.

Features are hashed (Weinberger et al. 2009): feature f of any number becomes one of `dimension`, times a random sign, so
that two which meet do not add up on average.  An example keeps its `places` largest features and has length 1.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.hashing.label_hashes import PRIME, LabelHashes
from ondevice.contract.vocabulary import (
    CLASSES,
    FEATURE_IDS,
    FEATURE_VALUES,
    NO_CLASS,
    FloatArray,
    IntArray,
)
from server_sim.data.population import Layout, write_arrays
from server_sim.data.population_files import PopulationError


@dataclass(frozen=True)
class FeatureHashing:
    dimension: int
    """Features that are left."""
    places: int
    """The most that one example keeps."""

    def __post_init__(self) -> None:
        if self.dimension < 1 or self.places < 1:
            raise ValueError(
                f"dimension is {self.dimension} and places {self.places}; expected at least 1 of each"
            )

    def hashed(self, features: IntArray, amounts: FloatArray) -> tuple[IntArray, FloatArray]:
        """The features that one example keeps, sorted, and what each has."""
        numbers = features % PRIME
        buckets = LabelHashes(1, self.dimension, seed=0).buckets(numbers)[:, 0]
        signs = 1 - 2 * LabelHashes(1, 2, seed=1).buckets(numbers)[:, 0]
        ids, inverse = np.unique(buckets, return_inverse=True)
        sums = np.bincount(inverse, amounts * signs, len(ids))
        kept = np.sort(np.argsort(-np.abs(sums), kind="stable")[: self.places])
        length = float(np.sqrt((sums[kept] ** 2).sum()))
        values = sums[kept] / length if length else sums[kept]
        return ids[kept], values.astype(np.float32)


class SparseExamples:
    """Grows by an example at a time, of which memory holds what is kept; all are laid out at once when they are written."""

    def __init__(self, hashing: FeatureHashing) -> None:
        self.hashing = hashing
        self._ids, self._values = array("q"), array("f")
        self._classes, self._counts = array("q"), array("q")
        self._users: list[str] = []
        self._is_test: list[bool] = []

    def __len__(self) -> int:
        return len(self._users)

    def add(
        self, features: IntArray, amounts: FloatArray, classes: Iterable[int], *, user: str, is_test: bool
    ) -> None:
        """One example; that of the test split belongs to nobody."""
        ids, values = self.hashing.hashed(features, amounts)
        missing = self.hashing.places - len(ids)
        self._ids.extend([*ids.tolist(), *[0] * missing])
        self._values.extend([*values.tolist(), *[0.0] * missing])
        own = sorted(set(classes))
        if not own:
            raise PopulationError(f"example {len(self)} has no class; leave it out")
        self._classes.extend(own)
        self._counts.append(len(own))
        self._users.append(user)
        self._is_test.append(is_test)

    def write(
        self, directory: Path, class_names: Sequence[str], *, name: str, recipe: Mapping[str, Any]
    ) -> None:
        """The population's folder, whole or not at all."""
        is_test = np.array(self._is_test, bool)
        for split, wanted in (("train", False), ("test", True)):
            if not (is_test == wanted).any():
                raise PopulationError(f"{name} has no example of the split {split}; a population needs both")
        shape = (len(self), self.hashing.places)
        classes = self._class_lists()
        if classes.max() >= len(class_names):
            raise PopulationError(f"{name} has class {classes.max()}; expected 0 to {len(class_names) - 1}")
        features: dict[str, NDArray[Any]] = {
            FEATURE_IDS: np.array(self._ids, np.int64).reshape(shape),
            FEATURE_VALUES: np.array(self._values, np.float32).reshape(shape),
            CLASSES: classes,
        }
        write_arrays(
            directory,
            self._layout(is_test, class_names, classes[:, 0]),
            features,
            name=name,
            seed=0,
            recipe=dict(recipe),
        )

    def _class_lists(self) -> IntArray:
        counts = np.array(self._counts, np.int64)
        lists = np.full((len(counts), int(counts.max())), NO_CLASS, np.int64)
        lists[np.arange(lists.shape[1]) < counts[:, None]] = np.array(self._classes, np.int64)
        return lists

    def _layout(self, is_test: np.ndarray, class_names: Sequence[str], labels: IntArray) -> Layout:
        train = np.flatnonzero(~is_test)
        owners = [self._users[number] for number in train.tolist()]
        client_names, clients = np.unique(owners, return_inverse=True)
        return Layout(
            class_names=list(class_names),
            client_names=client_names.tolist(),
            num_classes=len(class_names),
            # For what knows one class per example only, such as the statistics of a split.
            labels=labels,
            train=train[np.argsort(clients, kind="stable")],
            test=np.flatnonzero(is_test),
            offsets=np.concatenate([[0], np.cumsum(np.bincount(clients))]).astype(np.int64),
        )
