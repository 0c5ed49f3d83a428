"""Reading and writing by index: tables of embeddings, gathered and scattered elements, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from export.onnx.translation import (
    Formulation,
    Operand,
    Translation,
    Value,
    broadcast,
    constant_of,
    dtype_of,
    refused,
    shape_of,
)

aten = torch.ops.aten

Indices = Sequence[fx.Node | None]


def _embedding(
    t: Translation,
    node: fx.Node,
    table: fx.Node,
    ids: fx.Node,
    _padding: int = -1,
    _by_frequency: bool = False,
    _sparse: bool = False,
) -> Value:
    return Value(t.graph.call("Gather", t.full(table), t.full(ids), axis=0), shape_of(node))


def _embedding_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    ids: fx.Node,
    _rows: int | fx.Node,
    padding: int,
    by_frequency: bool,
) -> Value:
    """Every row of ∂y is added to the row of the table that it was read from; padding learns nothing."""
    if by_frequency:
        raise refused(node)
    g, rows = t.graph, t.full(dy)
    if padding >= 0:
        padded = g.call("Equal", t.full(ids), constant_of(t, ids, padding))
        rows = g.call("Where", g.call("Unsqueeze", padded, g.integers(-1)), g.number(0), rows)
    return added_rows(t, node, t.full(ids), rows)


def added_rows(t: Translation, node: fx.Node, ids: str, rows: str) -> Value:
    """Zeros of the node's shape with every row added at its id."""
    g = t.graph
    zeros = g.call("Expand", g.number(0), t.sizes(node))
    index = g.reshape(ids, -1, 1)
    flat = g.reshape(rows, -1, shape_of(node)[-1])
    return Value(g.call("ScatterND", zeros, index, flat, reduction="add"), shape_of(node))


def _index_select(t: Translation, node: fx.Node, x: fx.Node, axis: int, index: fx.Node) -> Value:
    return Value(t.graph.call("Gather", t.full(x), t.full(index), axis=axis), shape_of(node))


def _index_add(
    t: Translation, node: fx.Node, x: fx.Node, axis: int, index: fx.Node, source: fx.Node, *, alpha: float = 1
) -> Value:
    if alpha != 1:
        raise refused(node)
    shape = shape_of(x)
    axis %= len(shape)
    order = (axis, *range(axis), *range(axis + 1, len(shape)))
    moved = [t.graph.transpose(t.full(value), *order) for value in (x, source)]
    places = t.graph.reshape(t.full(index), -1, 1)
    added = t.graph.call("ScatterND", moved[0], places, moved[1], reduction="add")
    return Value(t.graph.transpose(added, *np.argsort(order).tolist()), shape)


def _gather(
    t: Translation, node: fx.Node, x: fx.Node, axis: int, index: fx.Node, *, sparse_grad: bool = False
) -> Value:
    del sparse_grad
    return Value(t.graph.call("GatherElements", t.full(x), t.full(index), axis=axis), shape_of(node))


def _scatter(**how: str) -> Formulation:
    def formulation(
        t: Translation, node: fx.Node, x: fx.Node, axis: int, index: fx.Node, source: Operand
    ) -> Value:
        if isinstance(source, fx.Node):
            name = t.full(source)
            if shape_of(source) != shape_of(index):  # torch reads as much of it as there are indices
                ends = t.graph.integers(*shape_of(index))
                starts = t.graph.integers(*(0 for _ in shape_of(index)))
                name = t.graph.call("Slice", name, starts, ends)
        else:
            name = t.graph.call("Expand", constant_of(t, x, source), t.sizes(index))
        scattered = t.graph.call("ScatterElements", t.full(x), t.full(index), name, axis=axis, **how)
        return Value(scattered, shape_of(node))

    return formulation


class _Places:
    """Index tensors on some axes of x, and x with those axes in front, as GatherND and ScatterND want them."""

    def __init__(self, t: Translation, node: fx.Node, x: fx.Node, indices: Indices) -> None:
        given = {axis: index for axis, index in enumerate(indices) if index is not None}
        shape, axes = shape_of(x), list(given)
        if not given or any(dtype_of(index) not in (torch.int64, torch.int32) for index in given.values()):
            raise refused(node, "only integers can index")
        # Indices with other axes between them put their own in front of all others.
        self.leading = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
        others = [axis for axis in range(len(shape)) if axis not in given]
        self.order = [*axes, *others]
        self.shape = broadcast(*(shape_of(index) for index in given.values()))
        self.full_shape = (
            *(shape[axis] for axis in others[: self.leading]),
            *self.shape,
            *(shape[axis] for axis in others[self.leading :]),
        )
        if -1 in self.full_shape:
            raise refused(node, "what is read or written by index must have a known size")
        sizes = t.graph.integers(*self.shape)
        columns = []
        for index in given.values():
            whole = t.cast(t.compact(index).name, dtype_of(index), torch.int64)
            columns.append(
                t.graph.call("Unsqueeze", t.graph.call("Expand", whole, sizes), t.graph.integers(-1))
            )
        self.stacked = columns[0] if len(columns) == 1 else t.graph.call("Concat", *columns, axis=-1)
        self.single = (
            (axes[0], t.graph.call("Squeeze", columns[0], t.graph.integers(-1))) if len(axes) == 1 else None
        )

    def back(self) -> list[int]:
        """From [index axes, others] to where torch puts the index axes."""
        rank, count, leading = len(self.full_shape), len(self.shape), self.leading
        return [*range(count, count + leading), *range(count), *range(count + leading, rank)]


def _index(t: Translation, node: fx.Node, x: fx.Node, indices: Indices) -> Value:
    places = _Places(t, node, x, indices)
    if places.single:
        axis, index = places.single
        return Value(t.graph.call("Gather", t.full(x), index, axis=axis), shape_of(node))
    gathered = t.graph.call("GatherND", t.graph.transpose(t.full(x), *places.order), places.stacked)
    return Value(t.graph.transpose(gathered, *places.back()), shape_of(node))


def _index_put(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    indices: Indices,
    values: fx.Node,
    accumulate: bool = False,
    _unsafe: bool = False,
) -> Value:
    if len(indices) == 1 and indices[0] is not None and dtype_of(indices[0]) == torch.bool:
        return _masked_put(t, node, x, indices[0], values, accumulate)
    places, g = _Places(t, node, x, indices), t.graph
    rows = g.call("Expand", t.compact(values).name, g.integers(*places.full_shape))
    rows = g.transpose(rows, *np.argsort(places.back()).tolist())
    how = {"reduction": "add"} if accumulate else {}
    put = g.call("ScatterND", g.transpose(t.full(x), *places.order), places.stacked, rows, **how)
    return Value(g.transpose(put, *np.argsort(places.order).tolist()), shape_of(node))


def _masked_put(
    t: Translation, node: fx.Node, x: fx.Node, mask: fx.Node, values: fx.Node, accumulate: bool
) -> Value:
    """One number wherever the mask says: how many places there are is not known."""
    if accumulate or math.prod(shape_of(values)) != 1:
        raise refused(node, "a mask can only put one number")
    trailing = len(shape_of(x)) - len(shape_of(mask))
    places = t.graph.reshape(t.full(mask), *shape_of(mask), *[1] * trailing)
    number = t.graph.reshape(t.full(values))
    return Value(t.graph.call("Where", places, number, t.full(x)), shape_of(node))


FORMULATIONS: dict[object, Formulation] = {
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.index_select.default: _index_select,
    aten.index_add.default: _index_add,
    aten.gather.default: _gather,
    aten.scatter.src: _scatter(),
    aten.scatter.value: _scatter(),
    aten.scatter_add.default: _scatter(reduction="add"),
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}
