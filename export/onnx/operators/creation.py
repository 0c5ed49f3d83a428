"""Values that are made from nothing: filled, counted, or of one number.

A filled value stays the one number that it is made of; most readers broadcast for free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from export.onnx.translation import (
    Formulation,
    Translation,
    Value,
    constant_of,
    dtype_of,
    refused,
    shape_of,
)

aten = torch.ops.aten
prims = torch.ops.prims

Argument = fx.Node | float | Sequence[int]


def _filled_with(number: float) -> Formulation:
    def formulation(t: Translation, node: fx.Node, *_: Argument, dtype: torch.dtype | None = None) -> Value:
        del dtype
        return Value(constant_of(t, node, number), ())

    return formulation


def _filled(t: Translation, node: fx.Node, *given: Argument, dtype: torch.dtype | None = None) -> Value:
    """The last argument is the number."""
    del dtype
    number = given[-1]
    if isinstance(number, fx.Node):
        return t.operand(number, dtype_of(node))
    return Value(constant_of(t, node, number), ())


def _positions(
    t: Translation, node: fx.Node, *bounds: fx.Node | float, dtype: torch.dtype | None = None
) -> Value:
    """arange: a constant, but for the positions of a table's rows in the slice."""
    del dtype
    if not any(isinstance(bound, fx.Node) for bound in bounds):
        numbers = torch.arange(*(bound for bound in bounds if not isinstance(bound, fx.Node)))
        return Value(constant_of(t, node, numbers.numpy()), shape_of(node))
    start, end, step = {1: (0, bounds[0], 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    if (start, step) != (0, 1) or not isinstance(end, fx.Node) or shape_of(node) != (-1,):
        raise refused(node, "only the positions of all rows of a table can be counted")
    rows = t.graph.call("Squeeze", t.sizes(node))
    counted = t.graph.call("Range", t.graph.integer(0), rows, t.graph.integer(1))
    return Value(t.cast(counted, torch.int64, dtype_of(node)), shape_of(node))


def _iota(t: Translation, node: fx.Node, length: int, *, start: int, step: int, dtype: torch.dtype) -> Value:
    del dtype
    return Value(constant_of(t, node, start + step * np.arange(length)), shape_of(node))


def _triangle(upper: bool) -> Formulation:
    def formulation(t: Translation, node: fx.Node, x: fx.Node, diagonal: int = 0) -> Value:
        rows, columns = shape_of(x)[-2:]
        if -1 in (rows, columns):
            raise refused(node)
        ones = np.ones((rows, columns), np.bool_)
        mask = t.graph.constant(np.triu(ones, diagonal) if upper else np.tril(ones, diagonal))
        if dtype_of(node) == torch.bool:
            return Value(t.graph.call("And", t.full(x), mask), shape_of(node))
        return Value(t.graph.call("Where", mask, t.full(x), constant_of(t, node, 0)), shape_of(node))

    return formulation


FORMULATIONS: dict[object, Formulation] = {
    aten.full.default: _filled,
    aten.full_like.default: _filled,
    aten.new_full.default: _filled,
    aten.scalar_tensor.default: _filled,
    aten.fill.Scalar: _filled,
    aten.fill.Tensor: _filled,
    aten.zeros.default: _filled_with(0),
    aten.zeros_like.default: _filled_with(0),
    aten.zero.default: _filled_with(0),
    aten.new_zeros.default: _filled_with(0),
    aten.ones.default: _filled_with(1),
    aten.ones_like.default: _filled_with(1),
    aten.new_ones.default: _filled_with(1),
    # What nothing has written to yet: any number will do.
    aten.empty.memory_format: _filled_with(0),
    aten.empty_like.default: _filled_with(0),
    aten.new_empty.default: _filled_with(0),
    aten.new_empty_strided.default: _filled_with(0),
    aten.empty_strided.default: _filled_with(0),
    aten.arange.default: _positions,
    aten.arange.start: _positions,
    aten.arange.start_step: _positions,
    prims.iota.default: _iota,
    aten.tril.default: _triangle(upper=False),
    aten.triu.default: _triangle(upper=True),
}
