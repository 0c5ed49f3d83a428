"""Named float32 arrays that lie one behind the other: walked over as one array where names do not matter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np

from ondevice.contract.vocabulary import FloatArray

Shapes = Mapping[str, tuple[int, ...]]


class FlatParameters(Mapping[str, FloatArray]):
    """By name, views of `flat`; they are made when the first of them is asked for."""

    def __init__(self, flat: FloatArray, shapes: Shapes) -> None:
        self.flat = flat
        """[entries of all]"""
        self.shapes = shapes

    @staticmethod
    def filled(value: float, shapes: Shapes) -> FlatParameters:
        return FlatParameters(np.full(num_entries(shapes), value, np.float32), shapes)

    @staticmethod
    def copied(parameters: Mapping[str, FloatArray], order: Iterable[str] | None = None) -> FlatParameters:
        """In the order given, or in their own."""
        names = list(parameters if order is None else order)
        copy = FlatParameters.filled(0, {name: parameters[name].shape for name in names})
        for name in names:
            copy[name][...] = parameters[name]
        return copy

    @staticmethod
    def of(parameters: Mapping[str, FloatArray], shapes: Shapes) -> FlatParameters:
        """Parameters of these names and shapes, in their order; copied only where they do not lie so already."""
        if isinstance(parameters, FlatParameters) and (
            parameters.shapes is shapes or list(parameters.shapes.items()) == list(shapes.items())
        ):
            return parameters
        copy = FlatParameters.copied(parameters, shapes)
        if copy.shapes != shapes:
            raise ValueError(f"parameters of shapes {copy.shapes}; expected {dict(shapes)}")
        return copy

    def __getitem__(self, name: str) -> FloatArray:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    @cached_property
    def _views(self) -> dict[str, FloatArray]:
        views, end = {}, 0
        for name, shape in self.shapes.items():
            start, end = end, end + math.prod(shape)
            views[name] = self.flat[start:end].reshape(shape)
        return views


def num_entries(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))
