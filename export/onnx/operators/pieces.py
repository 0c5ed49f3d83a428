"""Pieces of a value: joined, cut, picked and padded along its axes; and the gradients, which put a piece into zeros."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from export.onnx.graph import GraphBuilder
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


def _concatenate(t: Translation, node: fx.Node, values: Sequence[fx.Node], axis: int = 0) -> Value:
    """torch lets an empty vector be joined with anything."""
    dtype = dtype_of(node)
    joined = [t.cast(t.full(value), dtype_of(value), dtype) for value in values if shape_of(value) != (0,)]
    return Value(t.graph.call("Concat", *joined, axis=axis % len(shape_of(node))), shape_of(node))


def _stack(t: Translation, node: fx.Node, values: Sequence[fx.Node], axis: int = 0) -> Value:
    axis %= len(shape_of(node))
    dtype = dtype_of(node)
    rows = [
        t.graph.call("Unsqueeze", t.cast(t.full(value), dtype_of(value), dtype), t.graph.integers(axis))
        for value in values
    ]
    return Value(t.graph.call("Concat", *rows, axis=axis), shape_of(node))


def _cut(t: Translation, node: fx.Node, x: fx.Node, axis: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    shape = shape_of(x)
    axis %= len(shape)
    if shape[axis] == -1:
        raise refused(node, "the rows of a table cannot be parted")
    if len(set(sizes)) == len(sizes) == 1:
        return (t.compact(x),)
    names = t.graph.call_many("Split", len(sizes), t.full(x), t.graph.integers(*sizes), axis=axis)
    return tuple(
        Value(name, (*shape[:axis], size, *shape[axis + 1 :]))
        for name, size in zip(names, sizes, strict=True)
    )


def _split(t: Translation, node: fx.Node, x: fx.Node, size: int, axis: int = 0) -> tuple[Value, ...]:
    length = shape_of(x)[axis]
    return _cut(t, node, x, axis, [min(size, length - start) for start in range(0, length, size)])


def _split_with_sizes(
    t: Translation, node: fx.Node, x: fx.Node, sizes: Sequence[int], axis: int = 0
) -> tuple[Value, ...]:
    return _cut(t, node, x, axis, sizes)


def _unbind(t: Translation, node: fx.Node, x: fx.Node, axis: int = 0) -> tuple[Value, ...]:
    shape = shape_of(x)
    axis %= len(shape)
    if shape[axis] == -1:
        raise refused(node, "the rows of a table cannot be parted")
    rest = (*shape[:axis], *shape[axis + 1 :])
    return tuple(
        Value(t.graph.call("Gather", t.full(x), t.graph.integer(index), axis=axis), rest)
        for index in range(shape[axis])
    )


def halves(t: Translation, x: fx.Node, axis: int) -> tuple[str, ...]:
    axis %= len(shape_of(x))
    half = shape_of(x)[axis] // 2
    return t.graph.call_many("Split", 2, t.full(x), t.graph.integers(half, half), axis=axis)


def _select(t: Translation, node: fx.Node, x: fx.Node, axis: int, index: int) -> Value:
    picked = t.graph.call("Gather", t.full(x), t.graph.integer(index), axis=axis % len(shape_of(x)))
    return Value(picked, shape_of(node))


def _select_backward(
    t: Translation, node: fx.Node, dy: fx.Node, _: Sequence[int], axis: int, index: int
) -> Value:
    shape = shape_of(node)
    axis %= len(shape)
    if shape[axis] == -1:
        raise refused(node)
    spread = t.graph.call("Unsqueeze", t.full(dy), t.graph.integers(axis))
    before = index % shape[axis]
    return Value(zero_padded(t.graph, spread, shape, axis, (before, shape[axis] - 1 - before)), shape)


def _select_scatter(
    t: Translation, node: fx.Node, x: fx.Node, source: fx.Node, axis: int, index: int
) -> Value:
    shape = shape_of(node)
    axis %= len(shape)
    inside = _places(node, shape, axis, slice(index % shape[axis], index % shape[axis] + 1))
    spread = t.graph.call("Unsqueeze", t.full(source), t.graph.integers(axis))
    return _written(t, node, inside, spread, x)


def _slice(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    if node.meta["val"].shape == x.meta["val"].shape:
        return t.compact(x)
    shape = shape_of(x)
    axis %= len(shape)
    if shape[axis] == -1:  # of an unknown number of rows
        raise refused(node)
    first, last, _ = slice(start, end).indices(shape[axis])
    return Value(t.graph.slice(t.full(x), axis, first, last, step), shape_of(node))


def _slice_backward(
    t: Translation, node: fx.Node, dy: fx.Node, _: Sequence[int], axis: int, start: int, end: int, step: int
) -> Value:
    if node.meta["val"].shape == dy.meta["val"].shape:
        return t.compact(dy)
    shape = shape_of(node)
    axis %= len(shape)
    if shape[axis] == -1:
        raise refused(node)
    first = slice(start, end).indices(shape[axis])[0]
    return Value(_placed(t, shape, axis, range(first, shape[axis], step), dy), shape)


def _slice_scatter(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    source: fx.Node,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    shape = shape_of(node)
    if node.meta["val"].shape == source.meta["val"].shape:
        return t.compact(source)
    axis %= len(shape)
    inside = _places(node, shape, axis, slice(start, end, step))
    first = slice(start, end).indices(shape[axis])[0]
    placed = _placed(t, shape, axis, range(first, shape[axis], step), source)
    return _written(t, node, inside, placed, x)


def _written(t: Translation, node: fx.Node, inside: np.ndarray, piece: str, x: fx.Node) -> Value:
    shape = shape_of(node)
    places = Value(t.graph.constant(inside), inside.shape)
    return t.choose(places, Value(piece, shape), Value(t.full(x), shape), dtype_of(node))


def _places(node: fx.Node, shape: tuple[int, ...], axis: int, inside: slice) -> np.ndarray:
    """True at the places along one axis, in a shape that broadcasts to the whole."""
    if shape[axis] == -1:
        raise refused(node)
    places = np.zeros(shape[axis], np.bool_)
    places[inside] = True
    return places.reshape([-1 if at == axis else 1 for at in range(len(shape))])


def _placed(t: Translation, shape: tuple[int, ...], axis: int, places: range, piece: fx.Node) -> str:
    """The piece at these places of an axis, zeros elsewhere."""
    count, size = shape_of(piece)[axis], shape[axis]
    if places.step == 1:
        return zero_padded(t.graph, t.full(piece), shape, axis, (places.start, size - places.start - count))
    # One row of zeros behind the piece, which every other place reads.
    index = np.full(size, count, np.int64)
    index[places[:count]] = np.arange(count)
    with_zeros = zero_padded(t.graph, t.full(piece), shape, axis, (0, 1))
    return t.graph.call("Gather", with_zeros, t.graph.constant(index), axis=axis)


def zero_padded(
    graph: GraphBuilder, x: str, shape: tuple[int, ...], axis: int, sizes: tuple[int, int]
) -> str:
    """`sizes`: how many zeros before and behind."""
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, axis] = sizes
    return graph.call("Pad", x, graph.constant(pads.reshape(-1)))


def _pad(t: Translation, node: fx.Node, x: fx.Node, sizes: Sequence[int], value: float = 0.0) -> Value:
    """ATen lists the last axis first; a negative size cuts off, in both."""
    pads = np.zeros((2, len(shape_of(x))), np.int64)
    for at in range(len(sizes) // 2):
        pads[:, -1 - at] = sizes[2 * at], sizes[2 * at + 1]
    padded = t.graph.call("Pad", t.full(x), t.graph.constant(pads.reshape(-1)), constant_of(t, node, value))
    return Value(padded, shape_of(node))


def _roll(
    t: Translation, node: fx.Node, x: fx.Node, shifts: Sequence[int], axes: Sequence[int] = ()
) -> Value:
    shape = shape_of(x)
    if not axes:
        flat = int(np.prod(shape))
        rolled = _gathered(t, t.graph.reshape(t.full(x), flat), 0, np.roll(np.arange(flat), shifts[0]))
        return Value(t.graph.reshape(rolled, *shape), shape)
    name = t.full(x)
    for shift, axis in zip(shifts, axes, strict=True):
        if shape[axis] == -1:
            raise refused(node)
        name = _gathered(t, name, axis % len(shape), np.roll(np.arange(shape[axis]), shift))
    return Value(name, shape)


def _flip(t: Translation, node: fx.Node, x: fx.Node, axes: Sequence[int]) -> Value:
    shape, name = shape_of(x), t.full(x)
    for axis in axes:
        if shape[axis] == -1:
            raise refused(node)
        name = _gathered(t, name, axis % len(shape), np.arange(shape[axis])[::-1])
    return Value(name, shape)


def _gathered(t: Translation, x: str, axis: int, index: np.ndarray) -> str:
    return t.graph.call("Gather", x, t.graph.constant(index.astype(np.int64)), axis=axis)


def _origins(
    node: fx.Node, operator: Callable[..., torch.Tensor], shape: tuple[int, ...], given: Sequence[object]
) -> npt.NDArray[np.int64]:
    """Where in x every number of the result comes from: torch moves the positions themselves.

    Positions as floats, since not every such operator takes integers; double precision counts far enough.
    """
    if -1 in shape:
        raise refused(node)
    positions = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    return np.asarray(operator(positions, *given).reshape(-1).long().numpy())


def _moved(t: Translation, node: fx.Node, x: fx.Node, *given: int | Sequence[int] | None) -> Value:
    """Whatever only moves numbers, and copies some."""
    target = node.target
    assert callable(target)
    index = _origins(node, target, shape_of(x), given)
    gathered = _gathered(t, t.graph.reshape(t.full(x), -1), 0, index)
    return Value(t.graph.reshape(gathered, *shape_of(node)), shape_of(node))


def _moved_back(forward: torch._ops.OpOverload) -> Formulation:
    """The gradient of the same: every number is added to the place that it was read from."""

    def formulation(
        t: Translation, node: fx.Node, dy: fx.Node, _x: object, *given: int | Sequence[int]
    ) -> Value:
        shape = shape_of(node)
        index = t.graph.constant(_origins(node, forward, shape, given))
        zeros = t.graph.call("ConstantOfShape", t.graph.integers(math.prod(shape)))
        flat = (zeros, index, t.graph.reshape(t.full(dy), -1))
        added = t.graph.call("ScatterElements", *flat, axis=0, reduction="add")
        return Value(t.graph.reshape(added, *shape), shape)

    return formulation


def _moved_over(forward: torch._ops.OpOverload) -> Formulation:
    """Writing to the places that the operator reads."""

    def formulation(
        t: Translation, node: fx.Node, x: fx.Node, source: fx.Node, *given: int | Sequence[int] | None
    ) -> Value:
        index = t.graph.constant(_origins(node, forward, shape_of(x), given))
        flat = (t.graph.reshape(t.full(x), -1), index, t.graph.reshape(t.full(source), -1))
        written = t.graph.call("ScatterElements", *flat, axis=0)
        return Value(t.graph.reshape(written, *shape_of(x)), shape_of(x))

    return formulation


FORMULATIONS: dict[object, Formulation] = {
    aten.cat.default: _concatenate,
    aten.stack.default: _stack,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
    aten.select.int: _select,
    aten.select_backward.default: _select_backward,
    aten.select_scatter.default: _select_scatter,
    aten.slice.Tensor: _slice,
    aten.slice_backward.default: _slice_backward,
    aten.slice_scatter.default: _slice_scatter,
    aten.constant_pad_nd.default: _pad,
    aten.roll.default: _roll,
    aten.flip.default: _flip,
    aten.unfold.default: _moved,
    aten.as_strided.default: _moved,
    aten.diagonal.default: _moved,
    aten.reflection_pad1d.default: _moved,
    aten.reflection_pad2d.default: _moved,
    aten.replication_pad1d.default: _moved,
    aten.replication_pad2d.default: _moved,
    aten.pixel_shuffle.default: _moved,
    aten.pixel_unshuffle.default: _moved,
    aten.channel_shuffle.default: _moved,
    aten.unfold_backward.default: _moved_back(aten.unfold.default),
    aten.diagonal_backward.default: _moved_back(aten.diagonal.default),
    aten.reflection_pad1d_backward.default: _moved_back(aten.reflection_pad1d.default),
    aten.reflection_pad2d_backward.default: _moved_back(aten.reflection_pad2d.default),
    aten.replication_pad1d_backward.default: _moved_back(aten.replication_pad1d.default),
    aten.replication_pad2d_backward.default: _moved_back(aten.replication_pad2d.default),
    aten.as_strided_scatter.default: _moved_over(aten.as_strided.default),
    aten.diagonal_scatter.default: _moved_over(aten.diagonal.default),
}
