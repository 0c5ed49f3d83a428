"""Networks of texts that cannot have several lengths: one sees padding, one takes no other length, one draws numbers."""

from __future__ import annotations

from torch import Tensor, nn

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import Extractor

LENGTH, VOCABULARY = 6, 40


class Mean(Extractor):
    """Over all places, padding among them."""

    sequences = ("tokens",)

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        self.inputs = (ArraySpec("tokens", "feature", (EXAMPLES, LENGTH), "int64", below=VOCABULARY),)
        self.words = nn.Embedding(VOCABULARY, 4)
        self.embedding = nn.Linear(4, spec.embedding_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.words(tokens).mean(1))
        return embeddings


class Joined(Mean):
    """Weights for every place."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        self.embedding = nn.Linear(4 * LENGTH, spec.embedding_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.words(tokens).flatten(1))
        return embeddings


class Dropped(Mean):
    """Words are dropped at random."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.dropout(self.words(tokens)).sum(1))
        return embeddings
