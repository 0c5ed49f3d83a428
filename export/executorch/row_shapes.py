"""The shapes of `ondevice/native/operators/rows.cpp`: tensors in torch's own layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from export.executorch.shapes import expect


def _rows(what: str, x: Tensor, columns: int) -> int:
    """How many rows of so many numbers a tensor has; its last dimensions are the row."""
    numbers = math.prod(x.shape)
    if columns < 1 or numbers % columns:
        raise ValueError(f"{what} has rows of {columns} numbers in {list(x.shape)}; expected whole rows")
    return numbers // columns


def layer_norm(
    x: Tensor, columns: int, gamma: Tensor | None, beta: Tensor | None, _epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = _rows("layer_norm", x, columns)
    expect("gamma of layer_norm", gamma, columns)
    expect("beta of layer_norm", beta, columns)
    return x.new_empty(x.shape), x.new_empty(rows), x.new_empty(rows)


def layer_norm_gradient(
    gradient: Tensor,
    x: Tensor,
    columns: int,
    mean: Tensor,
    inverse_deviation: Tensor,
    gamma: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = _rows("layer_norm_gradient", x, columns)
    expect("gradient of layer_norm_gradient", gradient, *x.shape)
    expect("mean of layer_norm_gradient", mean, rows)
    expect("inverse_deviation of layer_norm_gradient", inverse_deviation, rows)
    expect("gamma of layer_norm_gradient", gamma, columns)
    return x.new_empty(x.shape), x.new_empty(columns), x.new_empty(columns)


def softmax(x: Tensor, columns: int) -> Tensor:
    _rows("softmax", x, columns)
    return x.new_empty(x.shape)


def softmax_gradient(gradient: Tensor, y: Tensor, columns: int) -> Tensor:
    expect("gradient of softmax_gradient", gradient, *y.shape)
    return softmax(y, columns)


def embedding_gradient(gradient: Tensor, ids: Tensor, rows: int, _padding: int) -> Tensor:
    expect("gradient of embedding_gradient", gradient, *ids.shape, gradient.shape[-1])
    return gradient.new_empty(rows, gradient.shape[-1])


def batched_product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    count, *of_a = a.shape
    rows, depth = reversed(of_a) if transpose_a else of_a
    columns = b.shape[1 if transpose_b else 2]
    expect("b of batched_product", b, count, *((columns, depth) if transpose_b else (depth, columns)))
    return a.new_empty(count, rows, columns)


def permute(x: Tensor, order: Sequence[int]) -> Tensor:
    if sorted(order) != list(range(x.dim())):
        raise ValueError(f"permute has order {list(order)} of {list(x.shape)}; expected every dimension once")
    return torch.empty([x.shape[dim] for dim in order], dtype=x.dtype, device=x.device)
