"""Networks of one vector per example."""

from __future__ import annotations

from torch import Tensor, nn

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.model.extractors.extractor import Extractor

ENTRIES, HIDDEN, DIM = 32, 128, 64


class Layers(Extractor):
    """Two hidden layers."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.inputs = (ArraySpec("vectors", "feature", (EXAMPLES, ENTRIES)),)
        self.body = nn.Sequential(*body)
        self.embedding = nn.Linear(HIDDEN, DIM)

    def forward(self, vectors: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.body(vectors))
        return embeddings


def relu_layers() -> Extractor:
    return Layers(nn.Linear(ENTRIES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())


def gelu_layers() -> Extractor:
    first, second = nn.Linear(ENTRIES, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
    return Layers(first, nn.GELU(), nn.LayerNorm(HIDDEN), second, nn.GELU())
