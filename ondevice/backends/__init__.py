"""Backends: ways to run the training step.  A backend holds no weights: they are inputs of every step.

So a new global model is a different set of arrays, never a reload, and a client's optimizer may update its arrays in place
between two steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ondevice.contract.vocabulary import FloatArray, IntArray, Parameters, StepSpec


@dataclass(frozen=True)
class Batch:
    """Examples ready for the step: normalised images, labels as positions in the slice, and weights."""

    images: FloatArray
    """[b, C, H, W]"""
    labels: IntArray
    """[b]"""
    example_weight: FloatArray
    """[b]: 1/B over a batch of B makes the loss its mean, 0 is padding."""


@dataclass(frozen=True)
class StepResult:
    """What a step puts out: the weighted loss, and a gradient for every trainable tensor."""

    loss: float
    extractor_gradients: Parameters
    columns_gradient: FloatArray


class Backend(Protocol):
    """Runs the step of one `StepSpec`."""

    @property
    def spec(self) -> StepSpec: ...

    @property
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The extractor's tensors that learn, in contract order; the others were given when the backend was opened."""
        ...

    @property
    def micro_batch(self) -> int | None:
        """The number of examples that a step takes, at the most; None where any number will do."""
        ...

    def step(
        self, extractor: Parameters, columns: FloatArray, adjust: FloatArray, batch: Batch
    ) -> StepResult:
        """One forward and backward pass.  The arrays are read, never kept or changed."""
        ...

    def embed(self, extractor: Parameters, images: FloatArray) -> FloatArray:
        """images [b, C, H, W] -> embeddings [b, embedding_dim], for evaluation."""
        ...
