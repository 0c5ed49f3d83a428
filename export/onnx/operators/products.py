"""Products of matrices, single and in batches."""

from __future__ import annotations

import torch
from torch import fx

from export.onnx.translation import Formulation, Translation, Value, shape_of

aten = torch.ops.aten


def _product(t: Translation, node: fx.Node, left: fx.Node, right: fx.Node) -> Value:
    return Value(_gemm(t, left, right), shape_of(node))


def _product_plus(
    t: Translation,
    node: fx.Node,
    bias: fx.Node,
    left: fx.Node,
    right: fx.Node,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Value:
    if beta == 0:  # torch does not even read it
        return Value(_gemm(t, left, right, alpha=float(alpha)), shape_of(node))
    return Value(_gemm(t, left, right, t.full(bias), alpha=float(alpha), beta=float(beta)), shape_of(node))


def _gemm(t: Translation, left: fx.Node, right: fx.Node, *bias: str, **factors: float) -> str:
    """Gemm reads transposed operands as they lie, so that no transpose is computed."""
    (left, transpose_left), (right, transpose_right) = _untransposed(left), _untransposed(right)
    operands = (t.full(left), t.full(right), *bias)
    return t.graph.call("Gemm", *operands, transA=transpose_left, transB=transpose_right, **factors)


def _untransposed(node: fx.Node) -> tuple[fx.Node, int]:
    if node.target not in (aten.t.default, aten.transpose.int, aten.permute.default):
        return node, 0
    if node.target is aten.permute.default and node.args[1] not in ([1, 0], [-1, -2], [-1, 0], [1, -2]):
        return node, 0
    if node.target is aten.transpose.int and len({int(str(axis)) % 2 for axis in node.args[1:]}) != 2:
        return node, 0
    assert isinstance(node.args[0], fx.Node)
    return node.args[0], 1


def _matrix_times_vector(t: Translation, node: fx.Node, matrix: fx.Node, vector: fx.Node) -> Value:
    """As a product of matrices: ONNX Runtime 1.19 gets a transposed matrix times a vector wrong."""
    matrix, transposed = _untransposed(matrix)
    column = t.graph.reshape(t.full(vector), -1, 1)
    product = t.graph.call("Gemm", t.full(matrix), column, transA=transposed)
    return Value(t.graph.reshape(product, *shape_of(node)), shape_of(node))


def _batched_product(t: Translation, node: fx.Node, left: fx.Node, right: fx.Node) -> Value:
    return Value(t.graph.matmul(t.full(left), t.full(right)), shape_of(node))


def _batched_product_plus(
    t: Translation,
    node: fx.Node,
    bias: fx.Node,
    left: fx.Node,
    right: fx.Node,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Value:
    product = Value(t.graph.matmul(t.full(left), t.full(right)), shape_of(node))
    if alpha != 1:
        product = t.elementwise("Mul", product, alpha)
    if beta == 0:
        return product
    return t.elementwise("Add", product, bias if beta == 1 else t.elementwise("Mul", bias, beta))


FORMULATIONS: dict[object, Formulation] = {
    aten.mm.default: _product,
    aten.addmm.default: _product_plus,
    aten.bmm.default: _batched_product,
    aten.mv.default: _matrix_times_vector,
    aten.dot.default: _batched_product,
    aten.baddbmm.default: _batched_product_plus,
}
