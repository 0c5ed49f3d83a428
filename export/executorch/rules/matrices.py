"""Matrix products, one or many at a time, and what Transformers have between them, in the operators of `ondevice/native`."""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from export.executorch.formulas import COPIED, ON_PLANES, Copied, Given, Known, Planes, Transposed
from export.executorch.rewrite import Rewrite, shape_of

aten = torch.ops.aten
fedss = torch.ops.fedss


def transpose(r: Rewrite, x: Given) -> Known | Copied:
    if len(shape_of(r.at)) != 2 or r.at.meta["val"].dtype != torch.float32:
        return COPIED
    return x.node if isinstance(x, Transposed) else Transposed(r.plain(x))


def product_from(r: Rewrite, start: Given, a: Given, b: Given) -> Known | Copied:
    """start + a b, with a start for every row or for every number."""
    shape = shape_of(r.at)
    return product(r, a, b, start) if shape_of(r.at.args[0]) in (shape, shape[1:]) else COPIED


def product(r: Rewrite, a: Given, b: Given, start: Given = None) -> fx.Node:
    flags = [isinstance(matrix, Transposed) for matrix in (a, b)]
    nodes = [matrix.node if isinstance(matrix, Transposed) else r.plain(matrix) for matrix in (a, b)]
    return r.emit(fedss.product.default, *nodes, *flags, None if start is None else r.plain(start))


def batched_product(r: Rewrite, a: Given, b: Given) -> Known | Copied:
    if r.at.meta["val"].dtype != torch.float32:
        return COPIED
    flags = [isinstance(matrices, Transposed) for matrices in (a, b)]
    nodes = [matrices.node if isinstance(matrices, Transposed) else r.plain(matrices) for matrices in (a, b)]
    return r.emit(fedss.batched_product.default, *nodes, *flags)


def swap(r: Rewrite, x: Given, first: int, second: int) -> Known | Copied:
    """Two dimensions; the last two of matrices are free where they meet a product."""
    rank = len(shape_of(r.at))
    order = list(range(rank))
    first, second = first % rank, second % rank
    order[first], order[second] = second, first
    if r.at.meta["val"].dtype != torch.float32:
        return COPIED
    if rank == 3 and {first, second} == {1, 2} and not isinstance(x, ON_PLANES):
        return x.node if isinstance(x, Transposed) else Transposed(r.plain(x), rank)
    return permute(r, x, order)


def permute(r: Rewrite, x: Given, order: list[int]) -> Known | Copied:
    """Planes are one order of dimensions among others: what is turned from them or to them is turned once."""
    if r.at.meta["val"].dtype != torch.float32:
        return COPIED
    order = [dim % len(order) for dim in order]
    if isinstance(x, ON_PLANES):
        of_planes = [(1, 0, 2, 3)[dim] for dim in order]
        node = r.planes(x)
        return node if of_planes == [0, 1, 2, 3] else r.emit(fedss.permute.default, node, of_planes)
    if len(order) == 4 and _becomes_planes(r.at):
        turned = [order[1], order[0], *order[2:]]
        return Planes(r.emit(fedss.permute.default, r.plain(x), turned))
    return r.emit(fedss.permute.default, r.plain(x), order)


PLANE_READERS = (
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.native_batch_norm_backward.default,
    aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default,
)
NUMBER_BY_NUMBER = (aten.add.Tensor, aten.mul.Tensor, aten.gelu.default, aten.silu.default, aten.relu.default)


def _becomes_planes(node: fx.Node) -> bool:
    """Whether a four-dimensional tensor goes to layers over planes, at once or after arithmetic."""
    seen, waiting = {node}, list(node.users)
    for _ in range(8):
        if not waiting:
            return False
        user = waiting.pop(0)
        if user.target in PLANE_READERS:
            return True
        if user.target in NUMBER_BY_NUMBER and user not in seen:
            seen.add(user)
            waiting += list(user.users)
    return False


# Rows.


def layer_norm(
    r: Rewrite, x: Given, sizes: list[int], gamma: Given, beta: Given, epsilon: float
) -> tuple[fx.Node, fx.Node, fx.Node]:
    columns = math.prod(sizes)
    weights = [_flat(r, weight, sizes) for weight in (gamma, beta)]
    node = r.emit(fedss.layer_norm.default, r.plain(x), columns, *weights, epsilon)
    out, mean, deviation = (r.emit(operator.getitem, node, i) for i in range(3))
    _out, seen_mean, _deviation = r.at.meta["val"]
    # As torch has them: one number per row, in the rows' own dimensions.
    shaped = [r.emit(aten.reshape.default, each, list(seen_mean.shape)) for each in (mean, deviation)]
    for made, value in zip((out, *shaped), r.at.meta["val"], strict=True):
        made.meta["val"] = value
    return out, shaped[0], shaped[1]


def layer_norm_backward(
    r: Rewrite, gradient: Given, x: Given, sizes: list[int], mean: Given, deviation: Given, *rest: Given
) -> tuple[fx.Node, fx.Node, fx.Node]:
    gamma, _beta, _wanted = rest
    columns = math.prod(sizes)
    rows = math.prod(shape_of(r.at.args[1])) // columns
    moments = [r.emit(aten.reshape.default, r.plain(each), [rows]) for each in (mean, deviation)]
    arguments = (r.plain(gradient), r.plain(x), columns, *moments, _flat(r, gamma, sizes))
    node = r.emit(fedss.layer_norm_gradient.default, *arguments)
    of_x, of_gamma, of_beta = (r.emit(operator.getitem, node, i) for i in range(3))
    if len(sizes) > 1:
        of_gamma, of_beta = (r.emit(aten.reshape.default, each, sizes) for each in (of_gamma, of_beta))
    for made, value in zip((of_x, of_gamma, of_beta), r.at.meta["val"], strict=True):
        made.meta["val"] = value
    return of_x, of_gamma, of_beta


def _flat(r: Rewrite, weight: Given, sizes: list[int]) -> fx.Node | None:
    if weight is None:
        return None
    return r.plain(weight) if len(sizes) == 1 else r.emit(aten.reshape.default, r.plain(weight), [-1])


def embedding_backward(
    r: Rewrite, gradient: Given, ids: Given, rows: Given, padding: int, by_frequency: bool
) -> fx.Node | Copied:
    """Every row of the gradient is added to the row of the table that it was read from."""
    if by_frequency or r.at.meta["val"].dtype != torch.float32:
        return COPIED
    assert isinstance(rows, (int, fx.Node))
    return r.emit(fedss.embedding_gradient.default, r.plain(gradient), r.plain(ids), rows, padding)


def softmax(r: Rewrite, x: Given, dim: int, half_to_float: bool) -> Known | Copied:
    shape = shape_of(r.at)
    if half_to_float or dim % len(shape) != len(shape) - 1 or not isinstance(shape[-1], int):
        return COPIED
    return r.emit(fedss.softmax.default, r.plain(x), shape[-1])


def softmax_backward(r: Rewrite, gradient: Given, output: Given, dim: int, _dtype: Given) -> Known | Copied:
    shape = shape_of(r.at)
    if dim % len(shape) != len(shape) - 1 or not isinstance(shape[-1], int):
        return COPIED
    return r.emit(fedss.softmax_gradient.default, r.plain(gradient), r.plain(output), shape[-1])
