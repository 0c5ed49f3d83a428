"""One member of every registry, as someone who extends the project would add it: each could be a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.client.weightings import WEIGHTINGS, WeightingView
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, rows_of
from ondevice.contract.vocabulary import (
    COLUMNS,
    FloatArray,
    IntArray,
    RoundPlan,
    RowSample,
    StepSpec,
)
from ondevice.model.extractors import ARCHITECTURES
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.objectives import OBJECTIVES
from server_sim.schemes import SCHEMES, Scheme
from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate
from server_sim.server.state import ServerState


@dataclass(frozen=True)
class EveryFew:
    """A sampler with a setting: the positives and every so many rows, of every table that the plan names."""

    step: int

    def draw(self, view: SamplingView) -> RowSample:
        ids = {
            table: np.union1d(view.labels, np.arange(0, size, self.step))
            for table, size in view.plan.table_sizes.items()
        }
        return RowSample(ids, {"adjust": np.zeros(len(ids[COLUMNS]), np.float32)})

    def widest(self, num_positives: int, num_rows: int) -> int:
        return min(num_rows, num_positives + -(-num_rows // self.step))


@dataclass(frozen=True)
class Latest:
    """A weighting with a setting: the last few examples, the later the heavier."""

    count: int

    def examples(self, plan: RoundPlan, labels: IntArray, private_seed: int) -> IntArray:  # noqa: ARG002
        return np.arange(max(0, len(labels) - self.count), len(labels))

    def weights(self, view: WeightingView, batch: IntArray) -> FloatArray:  # noqa: ARG002
        share = (batch + 1).astype(np.float32)
        weights: FloatArray = share / share.sum()
        return weights


class Halving(Scheme):
    """A scheme with a setting, whose server takes half of every mean difference of the classifier."""

    label: ClassVar[str] = "Halving"
    name: Literal["halving"] = "halving"
    step: int = Field(4, ge=1, description="Of its sampler.")

    def sampler(self) -> Choice:
        return Choice("every_few", {"step": self.step})

    def weighting(self) -> Choice:
        return Choice("latest", {"count": 6})

    def before_apply(self, mean: AggregatedUpdate, state: ServerState) -> AggregatedUpdate:  # noqa: ARG002
        halves = {
            table: AggregatedRows(rows.ids, rows.delta * np.float32(0.5))
            for table, rows in mean.tables.items()
        }
        return AggregatedUpdate(mean.dense, halves, mean.num_examples, mean.mean_loss)


class TopicObjective:
    """An objective with two tables, one of them used twice: `columns` classify, and pull an example towards their own."""

    def __init__(self, spec: StepSpec) -> None:
        self._dim = spec.embedding_dim

    def inputs(self) -> tuple[ArraySpec, ...]:
        return (
            ArraySpec(COLUMNS, "table", (rows_of(COLUMNS), self._dim)),
            ArraySpec("topics", "table", (rows_of("topics"), self._dim)),
            ArraySpec("adjust", "side", (rows_of(COLUMNS),), padding=-1e9),
            ArraySpec("labels", "label", (EXAMPLES,), "int64", positions_in=COLUMNS),
            ArraySpec("topic", "label", (EXAMPLES,), "int64", positions_in="topics"),
        )

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        columns, labels = arrays[COLUMNS], arrays["labels"]
        features = embeddings + arrays["topics"].index_select(0, arrays["topic"])
        logits = features @ columns.t() + arrays["adjust"]
        own = columns.index_select(0, labels)
        picked = (logits * F.one_hot(labels, len(columns))).sum(1)
        return torch.logsumexp(logits, 1) - picked + 0.1 * (features - own).square().sum(1)


class Tokens(Extractor):
    """An extractor that takes no images: the mean of six tokens' vectors."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        self.inputs = (ArraySpec("tokens", "feature", (EXAMPLES, 6), "int64"),)
        self.vectors = nn.Embedding(30, 12)
        self.embedding = nn.Linear(12, spec.embedding_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(torch.tanh(self.vectors(tokens).mean(1)))
        return embeddings


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of each registry."""
    monkeypatch.setitem(SAMPLERS, "every_few", EveryFew)
    monkeypatch.setitem(WEIGHTINGS, "latest", Latest)
    monkeypatch.setitem(SCHEMES, "halving", Halving)
    monkeypatch.setitem(OBJECTIVES, "topics", TopicObjective)
    monkeypatch.setitem(ARCHITECTURES, "tokens", f"{__name__}:Tokens")
