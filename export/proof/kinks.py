"""Kinks: where ReLU, hardswish and their like bend, and the activations that float32 may put on either side of one.

An activation within float32's rounding of a kink falls on either side of it, in eager as in any runtime, and moves some
gradients by 1e-3: a check that does not know of it cannot tell a wrong kernel from bad luck.  How far rounding reaches
differs from layer to layer and is measured: the root mean square of what float32 is off at the activation's input.  Planes
of flat pictures, whose numbers all round the same way, may be off by several times that, and are measured by themselves.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ondevice.contract.vocabulary import FloatArray

KINKS: dict[str, tuple[float, ...]] = {
    "relu": (0.0,),
    "leaky_relu": (0.0,),
    "prelu": (0.0,),
    "relu6": (0.0, 6.0),
    "hardswish": (-3.0, 3.0),
    "hardsigmoid": (-3.0, 3.0),
}
"""Of the function, of torch's method and of the method that writes in place, whose name ends in `_`."""
BOUNDED = {"hardtanh": (-1.0, 1.0)}
"""Those that bend where their arguments say, and where if they do not."""
ROUNDINGS_WITHIN_REACH = 4.0
NEIGHBOURS = 4
"""Float32 networks whose weights differ by a rounding: one alone may be lucky."""
SMALLEST_ROUNDING = 1e-8
"""Of a layer that happens to be exact."""


Network = TypeVar("Network", bound=nn.Module)

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
        kwargs = kwargs or {}
        kinks = _kinks_of(getattr(func, "__name__", "").removesuffix("_"), args[1:], kwargs)
        if kinks:
            args = (self.visit(args[0], kinks), *args[1:])
        return func(*args, **kwargs)


def _kinks_of(name: str, bounds: Sequence[Any], named: Mapping[str, Any]) -> Sequence[float]:
    if name not in BOUNDED:
        return KINKS.get(name, ())
    low, high = BOUNDED[name]
    given = dict(zip(("min_val", "max_val"), bounds, strict=False)) | dict(named)
    return float(given.get("min_val", low)), float(given.get("max_val", high))


class _Recording(_AtActivations):
    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []
        self.kinks: list[Sequence[float]] = []

    def visit(self, x: Tensor, kinks: Sequence[float]) -> Tensor:
        # A copy: the activation may write over it.
        self.inputs.append(x.detach().clone())
        self.kinks.append(kinks)
        return x


class AcrossKinks(_AtActivations):
    """Inside `with`, every activation that is within reach of a kink lies on the other side of it.

    `roundings` are those of the same examples (`roundings_of`): the next call takes the next one.
    """

    def __init__(self, roundings: Sequence[Tensor]) -> None:
        super().__init__()
        self._roundings = iter(roundings)

    def visit(self, x: Tensor, kinks: Sequence[float]) -> Tensor:
        reach = ROUNDINGS_WITHIN_REACH * next(self._roundings)
        with torch.no_grad():
            shift = torch.zeros_like(x)
            for kink in kinks:
                shift += torch.where((x - kink).abs() < reach, 2 * (kink - x), 0)
        return x + shift


def roundings_of(extractor: nn.Module, features: Features) -> list[Tensor]:
    """For every activation in order: how far float32 is off at its input, plane by plane.  `extractor` is in float64."""
    random = np.random.default_rng(0)
    rounded = [
        copy.deepcopy(extractor).float(),
        *(neighbour_of(extractor, random) for _ in range(NEIGHBOURS)),
    ]
    return _roundings(_record(extractor, features), rounded, features)


def neighbour_of(
    network: Network, random: np.random.Generator, precision: torch.dtype = torch.float32
) -> Network:
    """In a precision, with every weight replaced by the next number above or below it.

    A weight of 0 stays what it is, since no rounding moves it: where a network starts its blocks with a scale of 0, their
    outputs lie exactly on the kinks behind them.
    """
    neighbour = copy.deepcopy(network).to(precision)
    for tensor in neighbour.parameters():
        direction = random.choice(np.array([-np.inf, np.inf], np.float32), tuple(tensor.shape))
        moved = torch.nextafter(tensor.data, torch.from_numpy(np.asarray(direction)).to(precision))
        tensor.data = torch.where(tensor.data == 0, 0.0, moved)
    return neighbour


def clearance(extractor: nn.Module, features: Features) -> FloatArray:
    """[b]: by how many roundings each example's nearest activation keeps away from a kink.

    Measured on one float32 network: it chooses among pictures, and need not be right about any.
    """
    exact = _record(extractor, features)
    roundings = _roundings(exact, [copy.deepcopy(extractor).float()], features)
    nearest = np.full(len(features[0]), np.inf, np.float32)
    for x, kinks, rounding in zip(exact.inputs, exact.kinks, roundings, strict=True):
        for kink in kinks:
            distance = ((x - kink).abs() / rounding).flatten(1).amin(1)  # [b]
            nearest = np.minimum(nearest, distance.float().numpy())
    return nearest


def _record(network: nn.Module, features: Features) -> _Recording:
    dtype = next(network.parameters()).dtype
    recording = _Recording()
    with recording, torch.no_grad():
        network(*(in_precision(feature, dtype) for feature in features))
    return recording


def _roundings(exact: _Recording, rounded: Sequence[nn.Module], features: Features) -> list[Tensor]:
    """That of the whole tensor, or of a plane that is off by more; one number per plane."""
    squares = [torch.zeros((), dtype=torch.float64) for _ in exact.inputs]
    for network in rounded:
        for index, x in enumerate(_record(network, features).inputs):
            square = (exact.inputs[index] - x).square()
            within_a_plane = tuple(range(2, square.dim()))
            of_planes = square.mean(within_a_plane, keepdim=True) if within_a_plane else square
            squares[index] = squares[index] + torch.maximum(of_planes, square.mean()) / len(rounded)
    return [square.sqrt().clamp(min=SMALLEST_ROUNDING) for square in squares]
