"""Kinks: where ReLU, hardswish and hardsigmoid bend, and the activations that float32 may put on either side of one.

An activation within float32's rounding of a kink falls on either side of it, in eager as in any runtime, and moves some
gradients by 1e-3: a check that does not know of it cannot tell a wrong kernel from bad luck.  How far rounding reaches
differs from layer to layer and is measured: the root mean square of what float32 is off at the activation's input.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ondevice.contract.vocabulary import FloatArray

KINKS = {"relu": (0.0,), "hardswish": (-3.0, 3.0), "hardsigmoid": (-3.0, 3.0)}
ROUNDINGS_WITHIN_REACH = 4.0
SMALLEST_ROUNDING = 1e-8
"""Of a layer that happens to be exact."""


Features = Sequence[npt.NDArray[Any]]
"""What an extractor takes, in its order."""


def in_precision(array: npt.NDArray[Any], dtype: torch.dtype) -> Tensor:
    """Numbers in the precision of the weights; raw pixels and ids as they are."""
    tensor = torch.from_numpy(array)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class _AtActivations(TorchFunctionMode, ABC):
    @abstractmethod
    def visit(self, x: Tensor, kinks: Sequence[float]) -> Tensor:
        """Called with the input of every activation that has kinks; what comes back is activated instead."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kinks = KINKS.get(getattr(func, "__name__", ""))
        if kinks:
            args = (self.visit(args[0], kinks), *args[1:])
        return func(*args, **(kwargs or {}))


class _Recording(_AtActivations):
    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []
        self.kinks: list[Sequence[float]] = []

    def visit(self, x: Tensor, kinks: Sequence[float]) -> Tensor:
        self.inputs.append(x.detach())
        self.kinks.append(kinks)
        return x


class AcrossKinks(_AtActivations):
    """Inside `with`, every activation that is within reach of a kink lies on the other side of it.

    `roundings` are those of the same examples (`roundings_of`): the next call takes the next one.
    """

    def __init__(self, roundings: Sequence[float]) -> None:
        super().__init__()
        self._roundings = iter(roundings)

    def visit(self, x: Tensor, kinks: Sequence[float]) -> Tensor:
        reach = ROUNDINGS_WITHIN_REACH * next(self._roundings)
        with torch.no_grad():
            shift = torch.zeros_like(x)
            for kink in kinks:
                shift += torch.where((x - kink).abs() < reach, 2 * (kink - x), 0)
        return x + shift


def roundings_of(extractor: nn.Module, features: Features) -> list[float]:
    """For every activation in order: how far float32 is off at its input.  `extractor` is in float64."""
    return _compared(extractor, features)[1]


def clearance(extractor: nn.Module, features: Features) -> FloatArray:
    """[b]: by how many roundings each example's nearest activation keeps away from a kink."""
    recording, roundings = _compared(extractor, features)
    nearest = np.full(len(features[0]), np.inf, np.float32)
    for x, kinks, rounding in zip(recording.inputs, recording.kinks, roundings, strict=True):
        for kink in kinks:
            distance = (x - kink).abs().flatten(1).amin(1) / rounding  # [b]
            nearest = np.minimum(nearest, distance.float().numpy())
    return nearest


def _compared(extractor: nn.Module, features: Features) -> tuple[_Recording, list[float]]:
    recordings = []
    for precision, network in ((torch.float64, extractor), (torch.float32, copy.deepcopy(extractor).float())):
        with _Recording() as recording, torch.no_grad():
            network(*(in_precision(feature, precision) for feature in features))
        recordings.append(recording)
    exact, rounded = recordings
    roundings = [
        max(float((a - b).square().mean().sqrt()), SMALLEST_ROUNDING)
        for a, b in zip(exact.inputs, rounded.inputs, strict=True)
    ]
    return exact, roundings
