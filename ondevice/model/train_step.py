"""The training step that every runtime must reproduce: φ and an objective in one module, loss out.

Its contract is `ondevice.contract.step_signature`: the extractor says which features it takes, the objective which tables,
side arrays and labels, and the signature puts them in order.  `TrainStep` is what we trace; `ondevice.backends.eager` runs
it as it stands and is the definition the others must match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ondevice.contract.step_signature import EXAMPLES, ArraySpec, StepSignature
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.named_code import UnusableCode
from ondevice.model.noise import noise_given
from ondevice.model.objectives import build_objective
from ondevice.model.train_scope import trainable_names

EXAMPLE_WEIGHT = ArraySpec("example_weight", "example_weight", (EXAMPLES,))


class TrainStep(nn.Module):
    """The extractor wrapped, not edited, so that the loss comes out."""

    def __init__(self, spec: StepSpec, extractor: Extractor) -> None:
        super().__init__()
        self.spec = spec
        self.extractor = extractor
        self.objective = build_objective(spec)
        self.trainable = trainable_names(extractor, spec)
        for name, parameter in extractor.named_parameters():
            parameter.requires_grad_(name in self.trainable)
        self.signature = self._signature()

    def forward(self, *data: Tensor) -> Tensor:
        """The signature's inputs but the dense parameters, in its order -> the weighted sum of the losses."""
        named = dict(zip((spec.name for spec in self.signature.data), data, strict=True))
        return self.loss(self.embeddings(named), named)

    def embeddings(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """What the extractor gives in training, its noise among the arrays."""
        with noise_given(self.extractor, [arrays[spec.name] for spec in self.signature.noise]):
            outputs: Tensor = self.extractor(*(arrays[spec.name] for spec in self.signature.embedded))
        return outputs

    def loss(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of the losses, from the extractor's output and the signature's data by name."""
        losses = self.objective.losses(embeddings, arrays)
        weight = arrays[EXAMPLE_WEIGHT.name]
        if losses.shape != weight.shape:
            raise UnusableCode(
                f"objective is {self.spec.objective!r}, which gives {list(losses.shape)} for {len(weight)} examples; "
                "expected a loss per example, [b]"
            )
        return (weight * losses).sum()

    def trainable_tensors(self) -> list[Tensor]:
        """The extractor's tensors that learn, in the signature's order."""
        return [self.extractor.get_parameter(name) for name in self.trainable]

    def _signature(self) -> StepSignature:
        dense = [
            ArraySpec(name, "dense", tuple(self.extractor.get_parameter(name).shape))
            for name in self.trainable
        ]
        of_objective = self.objective.inputs()
        before = [spec for spec in of_objective if spec.role in ("table", "side")]
        after = [spec for spec in of_objective if spec.role == "label"]
        noise = self.extractor.noise.inputs
        return StepSignature((*dense, *before, *self.extractor.inputs, *after, *noise, EXAMPLE_WEIGHT))


class Embedding(nn.Module):
    """The extractor alone: what `StepSignature.embedded` lists -> embeddings, as `Extractor.summary` has them."""

    def __init__(self, extractor: Extractor) -> None:
        super().__init__()
        self.extractor = extractor

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.extractor.summary(self.extractor(*inputs), *inputs)


def step_outputs(loss: Tensor, trained: Sequence[Tensor]) -> list[Tensor]:
    """The step's outputs in the signature's order: the loss, then the gradient of everything that is trained."""
    return [loss.detach(), *torch.autograd.grad(loss, list(trained))]
