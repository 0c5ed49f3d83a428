"""Toy models that no part of the product knows: each is registered by one line, which is all that a new one may take."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.step_signature import EXAMPLES, ArraySpec, rows_of
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, StepSpec
from ondevice.model.extractors import ARCHITECTURES
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.objectives import OBJECTIVES
from ondevice.model.objectives.sampled_softmax import class_logits, sampled_softmax_losses

TWO_TABLES, VECTORS = "toy_two_tables", "toy_vectors"
COARSE = "coarse"
"""A second table, of rows twice as long as those of `columns`: a class of classes has a row in each half's space."""
VECTOR_LENGTH = 10


def register_toy_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test."""
    monkeypatch.setitem(OBJECTIVES, TWO_TABLES, TwoTables)
    monkeypatch.setitem(ARCHITECTURES, VECTORS, "helpers.networks.toy_models:Vectors")


class TwoTables:
    """A softmax over classes, and one over coarse classes whose rows hold a factor and an offset for every feature."""

    def __init__(self, spec: StepSpec) -> None:
        self._dim = spec.embedding_dim

    def inputs(self) -> tuple[ArraySpec, ...]:
        return (
            ArraySpec(COLUMNS, "table", (rows_of(COLUMNS), self._dim)),
            ArraySpec(COARSE, "table", (rows_of(COARSE), 2 * self._dim)),
            ArraySpec("adjust", "side", (rows_of(COLUMNS),), padding=float(EXCLUDED)),
            ArraySpec("coarse_adjust", "side", (rows_of(COARSE),), padding=float(EXCLUDED)),
            ArraySpec("labels", "label", (EXAMPLES,), "int64", positions_in=COLUMNS),
            ArraySpec("coarse_labels", "label", (EXAMPLES,), "int64", positions_in=COARSE),
        )

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        fine = class_logits(embeddings, arrays[COLUMNS], "cosine")
        factors, offsets = arrays[COARSE][:, : self._dim], arrays[COARSE][:, self._dim :]
        coarse = embeddings @ factors.t() + offsets.sum(1)
        return sampled_softmax_losses(
            fine, arrays["adjust"], arrays["labels"]
        ) + 0.5 * sampled_softmax_losses(coarse, arrays["coarse_adjust"], arrays["coarse_labels"])


class Vectors(Extractor):
    """A vector of numbers instead of an image."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        self.inputs = (ArraySpec("measurements", "feature", (EXAMPLES, VECTOR_LENGTH)),)
        self.hidden = nn.Linear(VECTOR_LENGTH, 24)
        self.embedding = nn.Linear(24, spec.embedding_dim)

    def forward(self, measurements: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(F.relu(self.hidden(measurements)))
        return embeddings
