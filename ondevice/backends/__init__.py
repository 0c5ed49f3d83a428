"""Backends: ways to run the training step.  A backend holds no weights: they are inputs of every step.

So a new global model is a different set of arrays, never a reload, and a client's optimizer may update its arrays in place
between two steps.
"""

from __future__ import annotations

from typing import Protocol

from ondevice.contract.step_signature import Arrays, StepSignature
from ondevice.contract.vocabulary import FloatArray


class Backend(Protocol):
    """Runs the step of one signature."""

    @property
    def signature(self) -> StepSignature: ...

    @property
    def micro_batch(self) -> int | None:
        """The number of examples that a step takes, at the most; None where any number will do."""
        ...

    def step(self, arrays: Arrays) -> Arrays:
        """One forward and backward pass: the signature's inputs -> its outputs.  Inputs are never changed."""
        ...

    def embed(self, arrays: Arrays) -> FloatArray:
        """Dense parameters and `signature.embedded`, any number of examples -> embeddings [b, d], or [b, places, d] where
        the extractor makes several of an example: for evaluation, and for samplers that look near."""
        ...
