"""Sums, means, extremes and what is made of them along axes: variance, norms, softmax, running sums, the largest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from export.onnx.translation import (
    Formulation,
    Translation,
    Value,
    dtype_of,
    refused,
    shape_of,
)

aten = torch.ops.aten

Axes = int | Sequence[int] | None


def _over(x: fx.Node, axes: Axes) -> tuple[int, ...]:
    """No axis means all of them."""
    rank = len(shape_of(x))
    if isinstance(axes, int):
        axes = (axes,)
    return tuple(axis % rank for axis in axes) if axes else tuple(range(rank))


def _reduce(operator_name: str, internal: torch.dtype | None = None) -> Formulation:
    """`internal`: the type to reduce in, where it is not that of the result."""

    def formulation(
        t: Translation,
        node: fx.Node,
        x: fx.Node,
        axes: Axes = None,
        keep: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Value:
        del dtype
        wanted = dtype_of(node)
        given = t.cast(t.full(x), dtype_of(x), internal or wanted)
        over = _over(x, axes)
        if not over:  # of a single number
            return t.operand(x, wanted)
        reduced = t.graph.call(operator_name, given, t.graph.integers(*over), keepdims=int(keep))
        return Value(t.cast(reduced, internal or wanted, wanted), shape_of(node))

    return formulation


def _product(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    axis: Axes = None,
    keep: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    return _reduce("ReduceProd")(t, node, x, axis, keep, dtype=dtype)  # type: ignore[return-value]


def _variance(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    axes: Axes = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    """Of the distances from the mean, which keeps the digits that E[x²] − mean² would lose."""
    variance, _ = _moments(t, x, axes, 1 if correction is None else correction, keepdim)
    return Value(variance, shape_of(node))


def _deviation(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    axes: Axes = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Value:
    variance, _ = _moments(t, x, axes, 1 if correction is None else correction, keepdim)
    return Value(t.graph.call("Sqrt", variance), shape_of(node))


def _variance_and_mean(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    axes: Axes = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Value, ...]:
    moments = _moments(t, x, axes, 1 if correction is None else correction, keepdim)
    shapes = (tuple(value.shape) for value in node.meta["val"])
    return tuple(Value(name, shape) for name, shape in zip(moments, shapes, strict=True))


def _moments(t: Translation, x: fx.Node, axes: Axes, correction: float, keep: bool) -> tuple[str, str]:
    g, over = t.graph, _over(x, axes)
    count = math.prod(shape_of(x)[axis] for axis in over)
    if count < 0:
        raise refused(x, "the variance over the rows of a table has no ONNX formulation")
    mean = g.call("ReduceMean", t.full(x), g.integers(*over))
    centred = g.subtract(t.full(x), mean)
    squares = g.sum(g.multiply(centred, centred), *over, keep=keep)
    variance = g.multiply(
        squares, g.number(1 / max(count - correction, 0) if count > correction else math.inf)
    )
    return variance, mean if keep else g.call("ReduceMean", t.full(x), g.integers(*over), keepdims=0)


def _vector_norm(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    order: float = 2,
    axes: Axes = None,
    keep: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    kinds = {1: "ReduceL1", 2: "ReduceL2"}
    if order in kinds:
        return _reduce(kinds[int(order)])(t, node, x, axes, keep, dtype=dtype)  # type: ignore[return-value]
    if math.isinf(order):
        sizes, kind = t.graph.call("Abs", t.full(x)), "ReduceMax" if order > 0 else "ReduceMin"
        over = t.graph.integers(*_over(x, axes))
        return Value(t.graph.call(kind, sizes, over, keepdims=int(keep)), shape_of(node))
    raise refused(node)


def _softmax(t: Translation, node: fx.Node, x: fx.Node, axis: int, _half: bool = False) -> Value:
    return Value(t.graph.call("Softmax", t.full(x), axis=axis), shape_of(node))


def _safe_softmax(
    t: Translation, node: fx.Node, x: fx.Node, axis: int, dtype: torch.dtype | None = None
) -> Value:
    """A row whose every place is masked by −∞ gives zeros, where softmax would give no numbers."""
    del dtype
    g = t.graph
    lowest = g.number(float(np.finfo(np.float32).min))
    finite = g.call("Max", t.full(x), lowest)
    open_rows = g.call("HardSigmoid", g.subtract(_largest(t, finite, axis), lowest), alpha=1e30, beta=0.0)
    return Value(g.multiply(g.call("Softmax", finite, axis=axis), open_rows), shape_of(node))


def _largest(t: Translation, x: str, axis: int) -> str:
    return t.graph.call("ReduceMax", x, t.graph.integers(axis))


def _log_softmax(t: Translation, node: fx.Node, x: fx.Node, axis: int, _half: bool = False) -> Value:
    return Value(t.graph.call("LogSoftmax", t.full(x), axis=axis), shape_of(node))


def _softmax_backward(
    t: Translation, node: fx.Node, dy: fx.Node, y: fx.Node, axis: int, _dtype: torch.dtype
) -> Value:
    g = t.graph
    mean = g.sum(g.multiply(t.full(dy), t.full(y)), axis, keep=True)
    return Value(g.multiply(t.full(y), g.subtract(t.full(dy), mean)), shape_of(node))


def _log_softmax_backward(
    t: Translation, node: fx.Node, dy: fx.Node, y: fx.Node, axis: int, _dtype: torch.dtype
) -> Value:
    g = t.graph
    total = g.sum(t.full(dy), axis, keep=True)
    return Value(g.subtract(t.full(dy), g.multiply(g.call("Exp", t.full(y)), total)), shape_of(node))


def _running_sum(
    t: Translation, node: fx.Node, x: fx.Node, axis: int, *, dtype: torch.dtype | None = None
) -> Value:
    del dtype
    given = t.cast(t.full(x), dtype_of(x), dtype_of(node))
    return Value(t.graph.call("CumSum", given, t.graph.integer(axis)), shape_of(node))


def _position_of(operator_name: str) -> Formulation:
    def formulation(
        t: Translation, node: fx.Node, x: fx.Node, axis: int | None = None, keep: bool = False
    ) -> Value:
        name = t.full(x) if axis is not None else t.graph.reshape(t.full(x), -1)
        found = t.graph.call(operator_name, name, axis=axis or 0, keepdims=int(keep and axis is not None))
        return Value(t.graph.reshape(found, *shape_of(node)), shape_of(node))

    return formulation


def _extreme_and_place(reduce: str, find: str) -> Formulation:
    """max and min along one axis: the value and the first place that has it."""

    def formulation(
        t: Translation, node: fx.Node, x: fx.Node, axis: int, keep: bool = False
    ) -> tuple[Value, ...]:
        value = t.graph.call(reduce, t.full(x), t.graph.integers(axis), keepdims=int(keep))
        place = t.graph.call(find, t.full(x), axis=axis, keepdims=int(keep))
        shape = tuple(node.meta["val"][0].shape)
        return Value(value, shape), Value(place, shape)

    return formulation


def _largest_few(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    count: int,
    axis: int = -1,
    largest: bool = True,
    _sorted: bool = True,
) -> tuple[Value, ...]:
    return _ordered(t, node, x, count, axis=axis, largest=largest)


def _sort(
    t: Translation, node: fx.Node, x: fx.Node, axis: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    return _ordered(t, node, x, shape_of(x)[axis], axis=axis, largest=descending)


def _ordered(
    t: Translation, node: fx.Node, x: fx.Node, count: int, *, axis: int, largest: bool
) -> tuple[Value, ...]:
    if count < 0:
        raise refused(node)
    names = t.graph.call_many("TopK", 2, t.full(x), t.graph.integers(count), axis=axis, largest=int(largest))
    return tuple(Value(name, tuple(value.shape)) for name, value in zip(names, node.meta["val"], strict=True))


FORMULATIONS: dict[object, Formulation] = {
    aten.sum.default: _reduce("ReduceSum"),
    aten.sum.dim_IntList: _reduce("ReduceSum"),
    aten.mean.default: _reduce("ReduceMean"),
    aten.mean.dim: _reduce("ReduceMean"),
    aten.amax.default: _reduce("ReduceMax"),
    aten.amin.default: _reduce("ReduceMin"),
    aten.max.default: _reduce("ReduceMax"),
    aten.min.default: _reduce("ReduceMin"),
    aten.any.default: _reduce("ReduceMax", torch.int32),
    aten.any.dim: _reduce("ReduceMax", torch.int32),
    aten.any.dims: _reduce("ReduceMax", torch.int32),
    aten.all.default: _reduce("ReduceMin", torch.int32),
    aten.all.dim: _reduce("ReduceMin", torch.int32),
    aten.prod.default: _product,
    aten.prod.dim_int: _product,
    aten.logsumexp.default: _reduce("ReduceLogSumExp"),
    aten.var.correction: _variance,
    aten.std.correction: _deviation,
    aten.var_mean.correction: _variance_and_mean,
    aten.linalg_vector_norm.default: _vector_norm,
    aten._softmax.default: _softmax,
    aten._safe_softmax.default: _safe_softmax,
    aten._log_softmax.default: _log_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.cumsum.default: _running_sum,
    aten.argmax.default: _position_of("ArgMax"),
    aten.argmin.default: _position_of("ArgMin"),
    aten.max.dim: _extreme_and_place("ReduceMax", "ArgMax"),
    aten.min.dim: _extreme_and_place("ReduceMin", "ArgMin"),
    aten.topk.default: _largest_few,
    aten.sort.default: _sort,
}
