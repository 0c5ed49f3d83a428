"""The golden step: one example of the training step, with the loss and the gradients that it must give.

Every artifact carries one, so that a runtime can prove itself on any device, without torch, before it trains.  What is
expected was computed in float64.  The tolerance is a distance in L2, tensor by tensor: 1e-5 of the gradient's norm, or
three times what eager float32 may itself be off, whichever is more.  A single element says little: one activation that falls
on the other side of a ReLU's kink moves some elements by 1e-3, in eager float32 as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondevice.backends import Backend
from ondevice.contract.step_signature import LOSS, Arrays, StepSignature, gradient_of
from ondevice.contract.vocabulary import Parameters

RELATIVE_TOLERANCE = 1e-5
EAGER_MULTIPLE = 3.0
SLACK = {"executorch-stock": 3.0}
"""The baseline's kernels add up one number after the other, and are off by more than a careful runtime's."""
ABSOLUTE_TOLERANCE = 1e-7
"""The rounding of a probability: over a single row the gradients are zero, and may come out as this."""


@dataclass(frozen=True)
class GoldenStep:
    """Inputs beside the dense parameters, and what comes out."""

    inputs: Arrays
    """The signature's data, by name; as many examples and rows as the maker chose."""
    loss: float
    gradients: Parameters
    """By the name of what has them, in the signature's order: dense parameters, then tables."""
    eager_distance: Mapping[str, float]
    """Per gradient: how far eager float32 may be from it, in L2, with activations near a kink on either side of it."""

    def describe(self) -> str:
        """How large it is, in a few words."""
        return ", ".join(f"{name} {list(array.shape)}" for name, array in self.inputs.items())


@dataclass(frozen=True)
class Comparison:
    """How far one step's outputs are from the expected ones."""

    relative_error: Mapping[str, float]
    """Per gradient, and for the loss: distance over norm."""
    beyond: Mapping[str, float]
    """Those that miss the tolerance: how many times the distance is what was allowed."""

    @property
    def passed(self) -> bool:
        return not self.beyond

    @property
    def worst_tensor(self) -> str:
        return max(self.relative_error, key=lambda name: self.relative_error[name])

    @property
    def worst_relative_error(self) -> float:
        return self.relative_error[self.worst_tensor]

    def explain(self) -> str:
        """One line for people."""
        if self.passed:
            return f"worst relative error {self.worst_relative_error:.1e} ({self.worst_tensor})"
        name = max(self.beyond, key=lambda tensor: self.beyond[tensor])
        return (
            f"{len(self.beyond)} of {len(self.relative_error)} outputs miss the tolerance; the worst is {name}: relative "
            f"error {self.relative_error[name]:.1e}, {self.beyond[name]:.3g} times what is allowed"
        )


def check_golden(backend: Backend, weights: Parameters, golden: GoldenStep, slack: float = 1.0) -> Comparison:
    """Run the golden step and compare; `slack` is that of the backend's runtime."""
    dense = {name: weights[name] for name in backend.signature.dense_shapes}
    return compare(backend.step({**dense, **golden.inputs}), golden, slack)


def compare(outputs: Arrays, golden: GoldenStep, slack: float = 1.0) -> Comparison:
    """Every output of a step against the expected one; `slack` widens every tolerance."""
    expected_names = [LOSS, *(gradient_of(name) for name in golden.gradients)]
    if list(outputs) != expected_names:
        raise ValueError(f"the step gave {list(outputs)}; expected {expected_names}")
    relative_error: dict[str, float] = {}
    beyond: dict[str, float] = {}
    pairs: dict[str, tuple[Any, Any]] = {
        name: (outputs[gradient_of(name)], expected) for name, expected in golden.gradients.items()
    }
    pairs[LOSS] = (np.reshape(outputs[LOSS], ()), np.array(golden.loss))
    for name, (found, expected) in pairs.items():
        eager_distance = golden.eager_distance[name]
        if np.shape(found) != np.shape(expected):
            raise ValueError(
                f"the gradient of {name} has shape {np.shape(found)}; expected {np.shape(expected)}"
            )
        norm = _norm(expected)
        distance = _norm(np.asarray(found, np.float64) - expected)
        allowed = slack * max(RELATIVE_TOLERANCE * norm, EAGER_MULTIPLE * eager_distance, ABSOLUTE_TOLERANCE)
        relative_error[name] = distance / max(norm, ABSOLUTE_TOLERANCE / RELATIVE_TOLERANCE)
        if not distance <= allowed:  # written so that a NaN misses it too
            beyond[name] = distance / allowed
    return Comparison(relative_error, beyond)


def worst_of(comparisons: Sequence[Comparison]) -> Comparison:
    """Of several steps: one that failed, if any did; else the one that is furthest off."""
    return max(comparisons, key=lambda comparison: (not comparison.passed, comparison.worst_relative_error))


def golden_to_tensors(golden: GoldenStep) -> dict[str, Any]:
    """The layout of golden.safetensors.  `eager_distance` follows the gradients' order, with the loss last."""
    return {
        **{f"input/{name}": array for name, array in golden.inputs.items()},
        f"output/{LOSS}": np.array([golden.loss], np.float32),
        **{f"output/{gradient_of(name)}": gradient for name, gradient in golden.gradients.items()},
        "eager_distance": np.array(
            [golden.eager_distance[name] for name in [*golden.gradients, LOSS]], np.float32
        ),
    }


def golden_from_tensors(tensors: Mapping[str, Any], signature: StepSignature) -> GoldenStep:
    """The inverse; a KeyError names the tensor that is not there."""
    distances = dict(zip([*signature.trained, LOSS], tensors["eager_distance"].tolist(), strict=True))
    return GoldenStep(
        inputs={spec.name: tensors[f"input/{spec.name}"] for spec in signature.data},
        loss=float(tensors[f"output/{LOSS}"][0]),
        gradients={name: tensors[f"output/{gradient_of(name)}"] for name in signature.trained},
        eager_distance=distances,
    )


def _norm(array: Any) -> float:
    return float(np.linalg.norm(np.asarray(array, np.float64)))
