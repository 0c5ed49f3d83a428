"""ATen operators in ONNX operators: the table, and the short formulations.

A formulation takes the translation, the traced node and the node's arguments; one that it does not take is refused.
Those of whole layers are in `layers.py`.  A new architecture needs, at the most, an entry here for an operator that the
others did not have.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch
from onnx import TensorProto
from torch import fx

from export.onnx.graph import GraphBuilder
from export.onnx.operators import group_norm as onnx_group_norm
from export.onnx.operators import layers as onnx_layers
from export.onnx.translation import Formulation, Translation, Value, refused, shape_of
from export.unsupported_operator import UnsupportedOperator

aten = torch.ops.aten


def _elementwise(operator_name: str, operands: int) -> Formulation:
    def formulation(t: Translation, node: fx.Node, *given: fx.Node | float) -> Value:
        if len(given) != operands:
            raise refused(node)
        return t.elementwise(operator_name, *given)

    return formulation


def _add(t: Translation, _: fx.Node, left: fx.Node, right: fx.Node | float, *, alpha: float = 1) -> Value:
    if alpha != 1:
        return t.elementwise("Add", left, t.elementwise("Mul", right, alpha))
    if isinstance(right, fx.Node):
        planes = _scaled_planes(t, left, right) or _scaled_planes(t, right, left)
        if planes:
            return planes
    return t.elementwise("Add", left, right)


def _subtract(
    t: Translation, _: fx.Node, left: fx.Node, right: fx.Node | float, *, alpha: float = 1
) -> Value:
    return t.elementwise("Sub", left, right if alpha == 1 else t.elementwise("Mul", right, alpha))


def _scaled_planes(t: Translation, scaled: fx.Node, shift: fx.Node) -> Value | None:
    """x·gate + v with gate and v one number per plane, as in the gradient of squeeze-and-excite: one pass, not two."""
    shape = shape_of(scaled)
    if scaled.target is not aten.mul.Tensor or len(shape) != 4:
        return None
    x, gate = scaled.args
    if not isinstance(x, fx.Node) or not isinstance(gate, fx.Node):
        return None
    planes = (*shape[:2], 1, 1)
    if t.compact(gate).shape != planes or t.compact(shift).shape != planes or t.compact(x).shape != shape:
        return None
    scale, offset = t.compact(gate).name, t.compact(shift).name
    return Value(onnx_group_norm.scale_planes(t.graph, t.full(x), scale, offset, shape), shape)


def _reversed_subtract(t: Translation, _: fx.Node, subtrahend: fx.Node, minuend: float) -> Value:
    return t.elementwise("Sub", minuend, subtrahend)


def _divide_by_number(t: Translation, _: fx.Node, dividend: fx.Node, divisor: float) -> Value:
    return t.elementwise("Mul", dividend, 1 / divisor)


def _expand(t: Translation, _: fx.Node, x: fx.Node, __: Sequence[int]) -> Value:
    return t.compact(x)


def _reshape(t: Translation, node: fx.Node, x: fx.Node, _: int | Sequence[int]) -> Value:
    """view, unsqueeze, squeeze: -1 can stand for one symbolic size, not for those of two tables."""
    shape = shape_of(node)
    if shape.count(-1) > 1:
        return Value(t.graph.call("Reshape", t.full(x), t.sizes(node)), shape)
    return Value(t.graph.reshape(t.full(x), *shape), shape)


def _transpose(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    if len(shape_of(x)) != 2:
        raise refused(node, "only matrices have an ONNX formulation")
    return Value(t.graph.transpose(t.full(x), 1, 0), shape_of(node))


def _product(t: Translation, node: fx.Node, left: fx.Node, right: fx.Node) -> Value:
    return Value(_gemm(t, left, right), shape_of(node))


def _product_plus_bias(t: Translation, node: fx.Node, bias: fx.Node, left: fx.Node, right: fx.Node) -> Value:
    return Value(_gemm(t, left, right, t.full(bias)), shape_of(node))


def _gemm(t: Translation, left: fx.Node, right: fx.Node, *bias: str) -> str:
    """Gemm reads transposed operands as they lie, so that no transpose is computed."""
    (left, transpose_left), (right, transpose_right) = _untransposed(left), _untransposed(right)
    operands = (t.full(left), t.full(right), *bias)
    return t.graph.call("Gemm", *operands, transA=transpose_left, transB=transpose_right)


def _untransposed(node: fx.Node) -> tuple[fx.Node, int]:
    if node.target is not aten.t.default:
        return node, 0
    assert isinstance(node.args[0], fx.Node)
    return node.args[0], 1


def _reduce(operator_name: str) -> Formulation:
    def formulation(
        t: Translation, node: fx.Node, x: fx.Node, axes: Sequence[int] | None = None, keep: bool = False
    ) -> Value:
        over = range(len(shape_of(x))) if axes is None else axes
        name = t.graph.call(operator_name, t.full(x), t.graph.integers(*over), keepdims=int(keep))
        return Value(name, shape_of(node))

    return formulation


def _positions(t: Translation, node: fx.Node, _: fx.Node) -> Value:
    """arange(m): the positions of a table's rows in the slice."""
    rows = t.graph.call("Squeeze", t.sizes(node))
    return Value(t.graph.call("Range", t.graph.integer(0), rows, t.graph.integer(1)), shape_of(node))


def _row_count(_: Translation, __: fx.Node, ___: fx.Node, ____: int) -> Value:
    """A symbolic size as a number: only shapes use it, and they read it off an input."""
    return Value("", ())


def _to_float(t: Translation, node: fx.Node, x: fx.Node, *, dtype: torch.dtype) -> Value:
    if dtype is not torch.float32:
        raise refused(node)
    return Value(t.graph.call("Cast", t.full(x), to=TensorProto.FLOAT), shape_of(node))


def _ones(t: Translation, _: fx.Node, __: fx.Node) -> Value:
    return t.compact(1.0)


def _reciprocal_root(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.call("Reciprocal", t.graph.call("Sqrt", t.full(x))), shape_of(node))


def _select(t: Translation, node: fx.Node, x: fx.Node, axis: int, index: int) -> Value:
    return Value(t.graph.call("Gather", t.full(x), t.graph.integer(index), axis=axis), shape_of(node))


def _select_backward(
    t: Translation, node: fx.Node, dy: fx.Node, _: Sequence[int], axis: int, index: int
) -> Value:
    size = shape_of(node)[axis]
    if size == -1:
        raise refused(node)
    before = index % size
    spread = t.graph.call("Unsqueeze", t.full(dy), t.graph.integers(axis))
    return Value(
        _zero_padded(t.graph, spread, shape_of(node), axis, before, size - 1 - before), shape_of(node)
    )


def _slice(t: Translation, node: fx.Node, x: fx.Node, axis: int, start: int, end: int) -> Value:
    if node.meta["val"].shape == x.meta["val"].shape:
        return t.compact(x)
    if shape_of(x)[axis] == -1:  # of an unknown number of rows
        raise refused(node)
    return Value(t.graph.slice(t.full(x), axis, start, end), shape_of(node))


def _slice_backward(
    t: Translation, node: fx.Node, dy: fx.Node, _: Sequence[int], axis: int, start: int, __: int, step: int
) -> Value:
    if node.meta["val"].shape == dy.meta["val"].shape:
        return t.compact(dy)
    size = shape_of(node)[axis]
    if step != 1 or size == -1:
        raise refused(node)
    before = max(0, start + size) if start < 0 else start
    after = size - before - shape_of(dy)[axis]
    return Value(_zero_padded(t.graph, t.full(dy), shape_of(node), axis, before, after), shape_of(node))


def _zero_padded(
    graph: GraphBuilder, x: str, shape: tuple[int, ...], axis: int, before: int, after: int
) -> str:
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, axis] = before, after
    return graph.call("Pad", x, graph.constant(pads.reshape(-1)))


def _hardsigmoid(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.call("HardSigmoid", t.full(x), alpha=1 / 6, beta=0.5), shape_of(node))


def _hardswish(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.multiply(t.full(x), _hardsigmoid(t, node, x).name), shape_of(node))


def _hardswish_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> Value:
    """The slope is s = x/3 + 1/2 within ±3, 0 below and 1 above.  ThresholdedRelu makes a line jump to 0: applied to
    3s it cuts off what is below, applied to 3 − 3s what is above.  Comparisons and Shrink take 4 times as long."""
    g = t.graph
    from_below = g.call("ThresholdedRelu", g.add(t.full(x), g.number(1.5)), alpha=-1.5)
    from_above = g.call("ThresholdedRelu", g.subtract(g.number(3), from_below), alpha=-1.5)
    slope = g.add(g.multiply(from_above, g.number(-1 / 3)), g.number(1))
    return Value(g.multiply(t.compact(dy).name, slope), shape_of(node))


def _hardsigmoid_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> Value:
    g = t.graph
    inside = g.call("Cast", g.call("Less", g.call("Abs", t.full(x)), g.number(3)), to=TensorProto.FLOAT)
    return Value(g.multiply(t.full(dy), g.multiply(inside, g.number(1 / 6))), shape_of(node))


def _relu_backward(t: Translation, node: fx.Node, dy: fx.Node, y: fx.Node, threshold: float) -> Value:
    """HardSigmoid with a huge slope is 0 up to 0 and 1 above it, and is vectorised, as comparisons are not."""
    if threshold != 0:
        raise refused(node)
    step = t.graph.call("HardSigmoid", t.full(y), alpha=1e30, beta=0.0)
    return Value(t.graph.multiply(t.compact(dy).name, step), shape_of(node))


def _item(t: Translation, _: fx.Node, several: fx.Node, position: int) -> Value:
    values = t.emitted[several]
    assert isinstance(values, tuple)
    value = values[position]
    assert value is not None, f"{several} was asked for no output {position}"
    return value


FORMULATIONS: dict[object, Formulation] = {
    operator.getitem: _item,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _subtract,
    aten.mul.Tensor: _elementwise("Mul", 2),
    aten.mul.Scalar: _elementwise("Mul", 2),
    aten.div.Scalar: _divide_by_number,
    aten.rsub.Scalar: _reversed_subtract,
    aten.neg.default: _elementwise("Neg", 1),
    aten.exp.default: _elementwise("Exp", 1),
    aten.pow.Tensor_Scalar: _elementwise("Pow", 2),
    aten.rsqrt.default: _reciprocal_root,
    aten.eq.Tensor: _elementwise("Equal", 2),
    aten.relu.default: _elementwise("Relu", 1),
    aten.hardswish.default: _hardswish,
    aten.hardsigmoid.default: _hardsigmoid,
    aten.threshold_backward.default: _relu_backward,
    aten.hardswish_backward.default: _hardswish_backward,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.mm.default: _product,
    aten.addmm.default: _product_plus_bias,
    aten.sum.default: _reduce("ReduceSum"),
    aten.sum.dim_IntList: _reduce("ReduceSum"),
    aten.mean.dim: _reduce("ReduceMean"),
    aten.logsumexp.default: _reduce("ReduceLogSumExp"),
    aten.t.default: _transpose,
    aten.view.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.expand.default: _expand,
    aten.select.int: _select,
    aten.select_backward.default: _select_backward,
    aten.slice.Tensor: _slice,
    aten.slice_backward.default: _slice_backward,
    aten.sym_size.int: _row_count,
    aten.arange.default: _positions,
    aten.ones_like.default: _ones,
    aten._to_copy.default: _to_float,
    aten.convolution.default: onnx_layers.convolution,
    aten.convolution_backward.default: onnx_layers.convolution_backward,
    aten.native_group_norm.default: onnx_layers.group_norm,
    aten.native_group_norm_backward.default: onnx_layers.group_norm_backward,
    aten.max_pool2d_with_indices.default: onnx_layers.max_pool,
    aten.max_pool2d_with_indices_backward.default: onnx_layers.max_pool_backward,
}


def formulation_of(node: fx.Node) -> Formulation:
    """The table's entry for an operator."""
    if node.target not in FORMULATIONS:
        raise UnsupportedOperator(
            f"the model uses {node.target} (at {node.name}), which has no ONNX formulation; add one to "
            "FORMULATIONS in export/onnx/operators/table.py, or write the model without it"
        )
    return FORMULATIONS[node.target]
