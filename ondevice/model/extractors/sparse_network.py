"""Networks of two hidden layers on sparse features, several side by side: the sub-models of FedMLH, or one for FedAvg.

Sub-models share nothing, so they are trained together in one step and their averages are those of federations of their own.
A network's first layer is a bag: a vector per feature is gathered, weighed and added up.  A feature of value 0 is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.contract.vocabulary import FEATURE_IDS, FEATURE_VALUES, StepSpec
from ondevice.model.extractors.arguments import sizes_of
from ondevice.model.extractors.extractor import Extractor


@dataclass(frozen=True)
class SparseSizes:
    vocabulary: int = 1000
    """How many features there are: ids are below it."""
    words: int = 32
    """Places for the features of one example."""
    hidden: int = 64
    """Width of both hidden layers."""
    sub_models: int = 1
    """R: they divide the outputs among themselves."""


class SubModel(nn.Module):
    def __init__(self, sizes: SparseSizes, num_outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.hidden)
        # An example's values have length 1, so the first layer's outputs begin with a length of about 1.
        nn.init.normal_(self.words.weight, std=sizes.hidden**-0.5)
        self.bias = nn.Parameter(torch.zeros(sizes.hidden))
        self.mix = nn.Linear(sizes.hidden, sizes.hidden)
        self.outputs = nn.Linear(sizes.hidden, num_outputs)
        # At first every output is as rare as if each example had one: not even, which most of the training would go into.
        nn.init.constant_(self.outputs.bias, -torch.tensor(float(num_outputs)).log().item())

    def forward(self, ids: Tensor, values: Tensor) -> Tensor:
        bag = (self.words(ids) * values[:, :, None]).sum(1)
        features = F.relu(self.mix(F.relu(bag + self.bias)))
        logits: Tensor = self.outputs(features)
        return logits


class SparseNetwork(Extractor):
    """ids int64 [b, words] and values float32 [b, words] -> logits [b, d], the sub-models' one after the other."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        sizes = sizes_of(SparseSizes, spec)
        if spec.embedding_dim % sizes.sub_models:
            raise ValueError(
                f"embedding_dim is {spec.embedding_dim}; expected a multiple of the {sizes.sub_models} sub_models, "
                "which have equally many outputs"
            )
        shape = (EXAMPLES, sizes.words)
        self.inputs = (
            ArraySpec(FEATURE_IDS, "feature", shape, "int64", below=sizes.vocabulary),
            ArraySpec(FEATURE_VALUES, "feature", shape),
        )
        num_outputs = spec.embedding_dim // sizes.sub_models
        self.sub_models = nn.ModuleList(SubModel(sizes, num_outputs) for _ in range(sizes.sub_models))

    def forward(self, ids: Tensor, values: Tensor) -> Tensor:
        return torch.cat([sub_model(ids, values) for sub_model in self.sub_models], 1)
