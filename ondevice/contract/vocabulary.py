"""The nouns of a federated round: frozen, checked when they are made, numpy only.

| paper               | here                                                                                    |
|---------------------|-----------------------------------------------------------------------------------------|
| φ                   | `dense`: the parameters that every client trains whole, by name                          |
| W, its column w_c   | a *table* with a row per class: a paper column is an array row, so slices are contiguous |
| S_k                 | `RowSample.ids[table]`: the rows that a client asks for                                  |
| W_S                 | `Rows`: some rows of a table with their ids                                              |
| (φ, W_S)            | `ModelSlice`, what the server sends                                                      |
| Δφ, ΔW_S            | `ClientUpdate`, what the client sends: always *client − server*                          |

A model has any number of tables, by name: the classifier of FedSS is the table `columns`.

One invariant is decided here for all: **row ids are int64, sorted and unique, and a row's position among them is how a step
knows it.** Sorted, so that their order says nothing about P_k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ondevice.contract.choice import Choice

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Parameters = Mapping[str, FloatArray]

Outputs = Callable[[IntArray], IntArray]
"""Classes [n] -> the outputs of the step that each stands for, [n, R]."""

IMAGES = "images"
"""The feature of image models: uint8 [N, C, H, W]."""

FEATURE_IDS, FEATURE_VALUES = "ids", "values"
"""The features of sparse examples: which of many are there, int64 [N, places], and how much of each, float32; 0 is none."""

CLASSES = "classes"
"""The classes of examples that have several: int64 [N, most of them], NO_CLASS behind the last."""

NO_CLASS = -1

TARGETS = "targets"
"""The step's input that is made of them: uint8 [b, outputs of the step]."""

COLUMNS = "columns"
"""The table of the classifier's rows: the columns of the paper's W."""

LogitKind = Literal["cosine", "dot"]
"""Scaled cosine (A.2), or the plain dot product; with `dot` a column carries its bias as its last entry."""

BatchNormPolicy = Literal["frozen", "group"]
"""What becomes of a network's BatchNorm: statistics as constants, or GroupNorm instead (`ondevice.model.batch_norm`)."""

Randomness = Literal["off", "input"]
"""What becomes of dropout and its like: nothing, or decided by noise that the client draws (`ondevice.model.noise`)."""

EXCLUDED = np.float32(-1e9)
"""Added to a logit it removes the class exactly: exp underflows to 0, so no loss and no gradient."""

COSINE_SCALE = 20.0
"""The fixed scale of A.2."""


_ADAPTERS, _LAST_BLOCKS = "lora:", "last-blocks"


def scope_items(train: str) -> list[str]:
    """The presets and patterns of a `train`; ValueError for what cannot be read."""
    items = [" ".join(item.split()) for item in train.split(",")]
    for item in items:
        if not item:
            raise ValueError(f"train is {train!r}; expected presets and patterns between its commas")
        if item.startswith(_ADAPTERS) and not _counts(item.removeprefix(_ADAPTERS)):
            raise ValueError(
                f"train has {item!r}; expected lora:R with a rank R of 1 or more, such as lora:8"
            )
        if item.partition(" ")[0] == _LAST_BLOCKS and not _counts(item.partition(" ")[2]):
            raise ValueError(f"train has {item!r}; expected a number of blocks, such as 'last-blocks 3'")
    if sum(item.startswith(_ADAPTERS) for item in items) > 1:
        raise ValueError(f"train is {train!r}; expected one rank for all adapters")
    return items


def _counts(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


@dataclass(frozen=True)
class StepSpec:
    """Everything that shapes the graph of the training step; weights, width and loss are inputs of it, not part of it."""

    architecture: str = "mobilenet_v3_large"
    embedding_dim: int = 64
    image_shape: tuple[int, int, int] = (3, 224, 224)
    """Channels, height, width."""
    objective: str = "sampled_softmax"
    """Which loss (`ondevice.model.objectives`)."""
    logits: LogitKind = "cosine"
    train: str = "all"
    """What learns: presets and patterns, separated by commas (`ondevice.model.train_scope`)."""
    pixel_mean: tuple[float, ...] = (0.5,)
    """Per channel, or one for all: what is subtracted from a pixel of 0..1."""
    pixel_deviation: tuple[float, ...] = (0.5,)
    """Per channel, or one for all: what the difference is divided by."""
    architecture_arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the architecture: what JSON can say."""
    batch_norm: BatchNormPolicy = "group"
    randomness: Randomness = "off"

    def __post_init__(self) -> None:
        _at_least("embedding_dim", self.embedding_dim, 1)
        if len(self.image_shape) != 3 or min(self.image_shape) < 1:
            raise ValueError(
                f"image_shape is {self.image_shape}; expected (channels, height, width), all positive"
            )
        _one_of("logits", self.logits, ("cosine", "dot"))
        scope_items(self.train)
        _one_of("batch_norm", self.batch_norm, ("frozen", "group"))
        _one_of("randomness", self.randomness, ("off", "input"))
        for name in ("pixel_mean", "pixel_deviation"):
            if len(getattr(self, name)) not in (1, self.image_shape[0]):
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} entries; expected 1, or {self.image_shape[0]}: one per channel"
                )
        if min(self.pixel_deviation) <= 0:
            raise ValueError(f"pixel_deviation is {self.pixel_deviation}; expected positive numbers")

    @property
    def adapter_rank(self) -> int | None:
        """Of the low-rank adapters that learn instead of the layers they sit on; None where there are none."""
        ranks = [
            int(item[len(_ADAPTERS) :]) for item in scope_items(self.train) if item.startswith(_ADAPTERS)
        ]
        return ranks[0] if ranks else None

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
    table_sizes: Mapping[str, int]
    """Table -> how many rows it has on the server."""
    sampler: Choice
    """Which rows a client asks for (`ondevice.client.samplers`)."""
    weighting: Choice
    """Which examples it trains on, with which weights (`ondevice.client.weightings`)."""
    transforms: tuple[Choice, ...] = ()
    """What is done to its update before it is encoded, in this order (`ondevice.client.transforms`)."""
    local_training: LocalTraining = field(default_factory=LocalTraining)
    sides: Mapping[str, str] = field(default_factory=dict)
    """Side arrays that come with every slice -> the table whose rows each is about (class priors, say)."""

    def __post_init__(self) -> None:
        _at_least("round_index", self.round_index, 0)
        for table, size in self.table_sizes.items():
            _at_least(f"the size of table {table}", size, 1)
        for side, table in self.sides.items():
            if table not in self.table_sizes:
                raise ValueError(f"the side array {side} is about rows of {table!r}; there is no such table")


@dataclass(frozen=True)
class ExampleSet:
    """Labelled examples as they lie on a client: features by name, each [N, ...], and global row ids [N] as labels.

    Features are raw: pixels uint8, tokens int64, numbers float32.  What a network wants is made of them inside the step.
    """

    features: Mapping[str, npt.NDArray[Any]]
    labels: IntArray

    def __post_init__(self) -> None:
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise ValueError(f"labels are {_kind(self.labels)}; expected int64 [N]")
        for name, feature in self.features.items():
            if (
                feature.dtype not in (np.uint8, np.int64, np.float32)
                or feature.shape[:1] != self.labels.shape
            ):
                raise ValueError(
                    f"{name} are {_kind(feature)}; expected uint8, int64 or float32 [{len(self.labels)}, ...], "
                    "an entry per label"
                )
        if self.labels.size and self.labels.min() < 0:
            raise ValueError(f"labels hold {self.labels.min()}; labels start at 0")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class RowSample:
    """The rows of every table that a client asks for, as the client knows them.  Only `ids` ever leaves the device."""

    ids: Mapping[str, IntArray]
    sides: Mapping[str, FloatArray]
    """Side arrays of the step that follow from the draw, an entry per row: `adjust`, what is added to a class's logit."""
    outputs: Outputs | None = None
    """Where classes are outputs of the step, and not rows: which."""

    def __post_init__(self) -> None:
        for ids in self.ids.values():
            check_row_ids(ids)


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, or of its difference: `values[i]` belongs to row `ids[i]`."""

    ids: IntArray
    values: FloatArray
    """[s, d]"""

    def __post_init__(self) -> None:
        check_row_ids(self.ids)
        if self.values.dtype != np.float32 or self.values.ndim != 2 or len(self.values) != len(self.ids):
            raise ValueError(f"values are {_kind(self.values)}; expected float32 [{len(self.ids)}, d]")


@dataclass(frozen=True)
class ModelSlice:
    """The part of the global model that one client trains this round."""

    dense: Parameters
    tables: Mapping[str, Rows]
    sides: Mapping[str, FloatArray] = field(default_factory=dict)
    """What the server knows of the rows and the client needs, an entry per row (class priors, say)."""


@dataclass(frozen=True)
class ClientUpdate:
    """How far the slice moved, client minus server, with what the server needs to weigh it."""

    dense: Parameters
    tables: Mapping[str, Rows]
    num_examples: int
    mean_loss: float

    def __post_init__(self) -> None:
        _at_least("num_examples", self.num_examples, 1)
        if not np.isfinite(self.mean_loss):
            raise ValueError(
                f"mean_loss is {self.mean_loss}; expected a finite number: did local training diverge?"
            )


def check_row_ids(row_ids: IntArray) -> None:
    """The invariant of the module docstring."""
    if row_ids.dtype != np.int64 or row_ids.ndim != 1:
        raise ValueError(f"row_ids are {row_ids.dtype}{list(row_ids.shape)}; expected int64 of one dimension")
    if row_ids.size and row_ids[0] < 0:
        raise ValueError(f"row_ids start at {row_ids[0]}; expected 0 or more")
    if np.any(row_ids[1:] <= row_ids[:-1]):
        at = int(np.argmax(row_ids[1:] <= row_ids[:-1]))
        raise ValueError(
            f"row_ids hold {row_ids[at]} before {row_ids[at + 1]} at position {at}; expected sorted and unique"
        )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; expected {least} or more")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


def largest_entry(values: FloatArray) -> float:
    """max |v|, and NaN if there is one: a check for finite numbers and for large ones, in two passes without a copy."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))
