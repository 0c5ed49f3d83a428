"""The nouns of a federated round: frozen, checked when they are made, numpy only.

| paper               | here                                                                        |
|---------------------|-----------------------------------------------------------------------------|
| P_k, N_k, S_k       | `ClassSample`: sorted ids of S_k, which of them are positives               |
| φ                   | `Parameters`: the extractor's trainable tensors by name                     |
| W, its column w_c   | `class_weights[c]`, [n, d]: a paper *column* is an array row, so that slices are contiguous |
| W_S                 | `Columns`                                                                   |
| (φ, W_S)            | `ModelSlice`, what the server sends                                         |
| Δφ, ΔW_S            | `ClientUpdate`, what the client sends: always *client − server*             |

One invariant is decided here for all: **class ids are int64, sorted and unique, and a class's position among them is its
local label.** Sorted, so that their order says nothing about P_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Parameters = Mapping[str, FloatArray]

Method = Literal["fedss", "negatives_only", "positives_only", "full_softmax"]
"""FedSS (Eq. 5), NegOnly (Eq. 7), PosOnly (Eq. 8), FullSoftmax (Eq. 2)."""

LogitKind = Literal["cosine", "dot"]
"""Scaled cosine (A.2), or the plain dot product; with `dot` a column carries its bias as its last entry."""

TrainScope = Literal["all", "last-two", "head"]
"""Which tensors learn: everything; the embedding layer and the columns; the columns alone."""

EXCLUDED = np.float32(-1e9)
"""Added to a logit it removes the class exactly: exp underflows to 0, so no loss and no gradient."""

COSINE_SCALE = 20.0
"""The fixed scale of A.2."""


@dataclass(frozen=True)
class StepSpec:
    """Everything that shapes the graph of the training step; weights, width and loss are inputs of it, not part of it."""

    architecture: str = "mobilenet_v3_large"
    embedding_dim: int = 64
    image_shape: tuple[int, int, int] = (3, 224, 224)
    """Channels, height, width."""
    logits: LogitKind = "cosine"
    train: TrainScope = "all"

    def __post_init__(self) -> None:
        _at_least("embedding_dim", self.embedding_dim, 1)
        if len(self.image_shape) != 3 or min(self.image_shape) < 1:
            raise ValueError(
                f"image_shape is {self.image_shape}; expected (channels, height, width), all positive"
            )
        _one_of("logits", self.logits, ("cosine", "dot"))
        _one_of("train", self.train, ("all", "last-two", "head"))

    @property
    def column_dim(self) -> int:
        """Entries of one column: d, plus the bias under dot-product logits."""
        return self.embedding_dim + (self.logits == "dot")


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: SGD over its own examples (Algorithm 1, lines 8-10)."""

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _at_least("epochs", self.epochs, 1)
        _at_least("batch_size", self.batch_size, 1)
        for name in ("learning_rate", "weight_decay", "momentum"):
            value = getattr(self, name)
            if not np.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value}; expected a finite number, 0 or more")
        if self.momentum >= 1:
            raise ValueError(f"momentum is {self.momentum}; expected less than 1, or local training diverges")


@dataclass(frozen=True)
class RoundPlan:
    """What the server tells every client of a round.  No seed: a server that knew it could solve S_k for P_k."""

    round_index: int
    num_classes: int
    num_negatives: int = 0
    """|N_k| for `fedss` and `negatives_only`; the other methods draw none."""
    method: Method = "fedss"
    local_training: LocalTraining = field(default_factory=LocalTraining)

    def __post_init__(self) -> None:
        _at_least("round_index", self.round_index, 0)
        _at_least("num_classes", self.num_classes, 1)
        _at_least("num_negatives", self.num_negatives, 0)
        _one_of("method", self.method, ("fedss", "negatives_only", "positives_only", "full_softmax"))
        if self.method in ("positives_only", "full_softmax") and self.num_negatives:
            raise ValueError(
                f"num_negatives is {self.num_negatives}, but {self.method} draws no negatives; set it to 0"
            )


@dataclass(frozen=True)
class ExampleSet:
    """Labelled images as they lie on a client: uint8 [N, C, H, W] and global class labels [N]."""

    images: npt.NDArray[np.uint8]
    labels: IntArray

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images are {self.images.dtype}{list(self.images.shape)}; expected uint8 [N, C, H, W]"
            )
        if self.labels.dtype != np.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels are {self.labels.dtype}{list(self.labels.shape)}; expected int64 [{len(self.images)}], one an image"
            )
        if self.labels.size and self.labels.min() < 0:
            raise ValueError(f"labels hold {self.labels.min()}; class labels start at 0")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ClassSample:
    """S_k = P_k + N_k as the client knows it.  Only `class_ids` ever leaves the device."""

    class_ids: IntArray
    is_positive: BoolArray
    log_expected_count: FloatArray
    """log of how often a class is expected in S_k: 0 for a positive (always there), log(m / (n − |P_k|)) for a negative."""

    def __post_init__(self) -> None:
        check_class_ids(self.class_ids)
        for name in ("is_positive", "log_expected_count"):
            if getattr(self, name).shape != self.class_ids.shape:
                raise ValueError(
                    f"{name} has shape {getattr(self, name).shape}; expected one entry a class: {self.class_ids.shape}"
                )

    @property
    def num_positives(self) -> int:
        return int(self.is_positive.sum())


@dataclass(frozen=True)
class Columns:
    """Some columns of W (or of ΔW): `weights[i]` belongs to class `class_ids[i]`."""

    class_ids: IntArray
    weights: FloatArray
    """[|S_k|, column_dim]"""

    def __post_init__(self) -> None:
        check_class_ids(self.class_ids)
        if (
            self.weights.dtype != np.float32
            or self.weights.ndim != 2
            or len(self.weights) != len(self.class_ids)
        ):
            raise ValueError(
                f"weights are {self.weights.dtype}{list(self.weights.shape)}; expected float32 [{len(self.class_ids)}, d]"
            )


@dataclass(frozen=True)
class ModelSlice:
    """(φ, W_S): the part of the global model that one client trains this round."""

    extractor: Parameters
    columns: Columns


@dataclass(frozen=True)
class ClientUpdate:
    """(Δφ, ΔW_S), client minus server, with what the server needs to weigh it."""

    extractor_delta: Parameters
    columns_delta: Columns
    num_examples: int
    mean_loss: float

    def __post_init__(self) -> None:
        _at_least("num_examples", self.num_examples, 1)
        if not np.isfinite(self.mean_loss):
            raise ValueError(
                f"mean_loss is {self.mean_loss}; expected a finite number: did local training diverge?"
            )


def check_class_ids(class_ids: IntArray) -> None:
    """The invariant of the module docstring."""
    if class_ids.dtype != np.int64 or class_ids.ndim != 1:
        raise ValueError(
            f"class_ids are {class_ids.dtype}{list(class_ids.shape)}; expected int64 of one dimension"
        )
    if class_ids.size and class_ids[0] < 0:
        raise ValueError(f"class_ids start at {class_ids[0]}; expected 0 or more")
    if np.any(class_ids[1:] <= class_ids[:-1]):
        at = int(np.argmax(class_ids[1:] <= class_ids[:-1]))
        raise ValueError(
            f"class_ids hold {class_ids[at]} before {class_ids[at + 1]} at position {at}; expected sorted and unique"
        )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; expected {least} or more")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")


def largest_entry(values: FloatArray) -> float:
    """max |v|, and NaN if there is one: a check for finite numbers and for large ones, in two passes without a copy."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))
