"""Sparse bags of words: the ids of an example's words and what each counts, through a small network.

A vector per word is gathered, weighed and added up: an EmbeddingBag in operators that every runtime has a gradient for.
An id that counts 0 is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.arguments import sizes_of
from ondevice.model.extractors.extractor import Extractor


@dataclass(frozen=True)
class BagSizes:
    vocabulary: int = 1000
    words: int = 32
    """Places for the words of one example."""
    hidden: int = 64


class BagOfWords(Extractor):
    """ids int64 [b, words] and counts float32 [b, words] -> [b, d]"""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        sizes = sizes_of(BagSizes, spec)
        shape = (EXAMPLES, sizes.words)
        self.inputs = (
            ArraySpec("ids", "feature", shape, "int64", below=sizes.vocabulary),
            ArraySpec("counts", "feature", shape),
        )
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.bias = nn.Parameter(torch.zeros(sizes.hidden))
        self.mix = nn.Linear(sizes.hidden, sizes.hidden)
        self.embedding = nn.Linear(sizes.hidden, spec.embedding_dim)

    def forward(self, ids: Tensor, counts: Tensor) -> Tensor:
        bag = (self.words(ids) * counts[:, :, None]).sum(1)
        features = F.relu(self.mix(F.relu(bag + self.bias)))
        embeddings: Tensor = self.embedding(features)
        return embeddings
