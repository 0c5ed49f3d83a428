"""The training step that every runtime must reproduce: φ, the sampled head and the loss in one module, loss out.

The contract (names and order; every artifact and every backend keeps it):

    inputs   the trainable extractor tensors by name, in the module's order; then `columns` [m, column_dim],
             `adjust` [m], `images` [b, C, H, W], `labels` [b] int64 positions in the slice, `example_weight` [b]
    outputs  `loss`, the weighted sum; then one gradient for each trainable extractor tensor, and that of `columns`

Weights of 1/B over a batch make the sum the batch mean, so the gradients of micro-batches simply add up; 0 is padding.
`TrainStep` is what we trace; `ondevice.backends.eager` runs it as it stands and is the definition the others must match.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import trainable_names
from ondevice.model.objectives.sampled_softmax import class_logits, sampled_softmax_loss


class TrainStep(nn.Module):
    """The extractor wrapped, not edited, so that the loss comes out."""

    def __init__(self, spec: StepSpec, extractor: nn.Module) -> None:
        super().__init__()
        self.spec = spec
        self.extractor = extractor
        self.trainable = trainable_names(extractor, spec)
        for name, parameter in extractor.named_parameters():
            parameter.requires_grad_(name in self.trainable)

    def forward(
        self, columns: Tensor, adjust: Tensor, images: Tensor, labels: Tensor, example_weight: Tensor
    ) -> Tensor:
        logits = class_logits(self.extractor(images), columns, self.spec.logits)
        return sampled_softmax_loss(logits, adjust, labels, example_weight)

    def trainable_tensors(self) -> list[Tensor]:
        """The extractor's tensors that learn, in contract order."""
        return [self.extractor.get_parameter(name) for name in self.trainable]


def loss_and_gradients(
    loss: Tensor, extractor_tensors: Sequence[Tensor], columns: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """The step's outputs, in contract order: loss, the extractor's gradients, the columns' gradient."""
    *extractor_gradients, columns_gradient = torch.autograd.grad(loss, [*extractor_tensors, columns])
    return loss.detach(), extractor_gradients, columns_gradient
