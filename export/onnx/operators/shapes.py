"""What changes a value's shape or the order of its axes, and what computes nothing at all."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from export.onnx.translation import Formulation, Translation, Value, refused, shape_of

aten = torch.ops.aten


def _same(t: Translation, _: fx.Node, x: fx.Node) -> Value:
    return t.compact(x)


def _copied(t: Translation, node: fx.Node, _x: fx.Node, source: fx.Node) -> Value:
    return t.operand(source, node.meta["val"].dtype)


def _reshape(t: Translation, node: fx.Node, x: fx.Node, *_sizes: int | Sequence[int]) -> Value:
    """view, unsqueeze, squeeze: -1 can stand for one symbolic size, not for those of two tables."""
    shape = shape_of(node)
    if shape.count(-1) > 1:
        return Value(t.graph.call("Reshape", t.full(x), t.sizes(node)), shape)
    return Value(t.graph.reshape(t.full(x), *shape), shape)


def _expand(t: Translation, _: fx.Node, x: fx.Node, __: Sequence[int], *, implicit: bool = False) -> Value:
    """Not computed: most readers broadcast for free."""
    del implicit
    return t.compact(x)


def _permute(t: Translation, node: fx.Node, x: fx.Node, order: Sequence[int]) -> Value:
    return Value(t.graph.transpose(t.full(x), *(axis % len(order) for axis in order)), shape_of(node))


def _transpose(t: Translation, node: fx.Node, x: fx.Node, first: int = 0, second: int = 1) -> Value:
    """Of two axes; `t` of a matrix, and of a vector, which stays what it is."""
    order = list(range(len(shape_of(x))))
    if len(order) < 2:
        return t.compact(x)
    order[first], order[second] = order[second], order[first]
    return Value(t.graph.transpose(t.full(x), *order), shape_of(node))


def _repeat(t: Translation, node: fx.Node, x: fx.Node, times: Sequence[int]) -> Value:
    if any(not isinstance(count, int) for count in times):
        raise refused(node, "a value can be repeated a known number of times only")
    shape = (1,) * (len(times) - len(shape_of(x))) + shape_of(x)
    if all(size == 1 or count == 1 for size, count in zip(shape, times, strict=True)):
        return Value(t.graph.reshape(t.full(x), *shape), shape)
    tiled = t.graph.call("Tile", t.graph.reshape(t.full(x), *shape), t.graph.integers(*times))
    return Value(tiled, shape_of(node))


def _nothing(_: Translation, __: fx.Node, *___: object) -> Value:
    """A check of torch's own, which no value depends on."""
    return Value("", ())


def _row_count(_: Translation, __: fx.Node, ___: fx.Node, ____: int) -> Value:
    """A symbolic size as a number: only shapes use it, and they read it off an input."""
    return Value("", ())


def _item(t: Translation, _: fx.Node, several: fx.Node, position: int) -> Value:
    values = t.emitted[several]
    assert isinstance(values, tuple)
    value = values[position]
    assert value is not None, f"{several} was asked for no output {position}"
    return value


FORMULATIONS: dict[object, Formulation] = {
    operator.getitem: _item,
    aten._assert_scalar.default: _nothing,
    aten.sym_size.int: _row_count,
    aten.clone.default: _same,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.lift_fresh_copy.default: _same,
    aten.copy.default: _copied,
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.reshape.default: _reshape,
    aten._reshape_copy.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.expand.default: _expand,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.repeat.default: _repeat,
}
