"""Binary cross entropy over every output: an example may have any number of classes, or of buckets that they fall into.

    loss = Σ_j log(1 + exp(o_j)) − z_j o_j,   z_j = 1 where one of the example's classes stands for output j, else 0
         = Σ_j log(1 + exp((1 − 2 z_j) o_j))

The second form is computed: it takes fewer passes over the outputs, and subtracts nothing where a target is met.
The extractor gives the logits o themselves, so there is no table.  The targets z come as a byte per output: the clients make
them of the example's list of classes and of what the plan says each stands for (`RowSample.outputs`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.contract.vocabulary import TARGETS, StepSpec

_PART = 256
"""Losses that are added up at a time."""


class BinaryCrossEntropy:
    """[b, d] logits and as many targets."""

    def __init__(self, spec: StepSpec) -> None:
        self._num_outputs = spec.embedding_dim

    def inputs(self) -> tuple[ArraySpec, ...]:
        return (ArraySpec(TARGETS, "label", (EXAMPLES, self._num_outputs), "uint8", below=2),)

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        targets = arrays[TARGETS].to(embeddings.dtype)
        losses = F.softplus(embeddings * (1 - 2 * targets))
        # Part by part: many numbers of one size, added to a large sum one by one, are all rounded the same way.
        parts: Tensor = F.pad(losses, (0, -self._num_outputs % _PART)).unflatten(1, (-1, _PART))
        return parts.sum(2).sum(1)
