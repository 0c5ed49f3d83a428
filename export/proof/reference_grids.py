"""The rest of `reference_kernels.py`: windows of any kind, and tensors in torch's own layout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn import grad

import export.executorch.operators  # noqa: F401  # declares the operators

_LIBRARY = torch.library.Library("fedss", "IMPL")


def _turned(x: Tensor) -> Tensor:
    """[C, B, H, W] <-> [B, C, H, W]"""
    return x.transpose(0, 1).contiguous()


def _same(a: Tensor, b: Tensor) -> None:
    """The kernels do not broadcast, so neither may their reference."""
    assert a.shape == b.shape, f"{list(a.shape)} meets {list(b.shape)}"


# Windows with sizes of their own in height and in width.


def grid_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    return _turned(F.conv2d(x.transpose(0, 1), weight, bias, stride, padding, dilation, groups))


def grid_convolution_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    height: int,
    width: int,
) -> Tensor:
    sizes = (gradient.shape[1], weight.shape[1] * groups, height, width)
    turned = gradient.transpose(0, 1)
    return _turned(grad.conv2d_input(sizes, weight, turned, stride, padding, dilation, groups))


def grid_convolution_weight_gradient(
    gradient: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    sizes = (gradient.shape[0], x.shape[0] // groups, *kernel)
    turned = gradient.transpose(0, 1)
    made: Tensor = grad.conv2d_weight(x.transpose(0, 1), sizes, turned, stride, padding, dilation, groups)
    return made


def grid_max_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    height: int,
    width: int,
) -> Tensor:
    for ceil in (False, True):
        pooled = F.max_pool2d(x, kernel, stride, padding, dilation, ceil)
        if tuple(pooled.shape[2:]) == (height, width):
            return pooled
    raise AssertionError(f"{list(pooled.shape)} is not {height} x {width}")


def grid_max_pool_gradient(
    gradient: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        pooled = grid_max_pool(leaf, kernel, stride, padding, dilation, *gradient.shape[2:])
        return torch.autograd.grad(pooled, leaf, gradient)[0]


def average_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    divisor: int,
    count_padding: bool,
    height: int,
    width: int,
) -> Tensor:
    for ceil in (False, True):
        pooled = F.avg_pool2d(x, kernel, stride, padding, ceil, count_padding, divisor or None)
        if tuple(pooled.shape[2:]) == (height, width):
            return pooled
    raise AssertionError(f"{list(pooled.shape)} is not {height} x {width}")


def average_pool_gradient(
    gradient: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    divisor: int,
    count_padding: bool,
    height: int,
    width: int,
) -> Tensor:
    with torch.enable_grad():
        leaf = gradient.new_zeros(*gradient.shape[:2], height, width).requires_grad_()
        window = (kernel, stride, padding, divisor, count_padding)
        return torch.autograd.grad(average_pool(leaf, *window, *gradient.shape[2:]), leaf, gradient)[0]


# Tensors in torch's own layout.


def layer_norm(
    x: Tensor, columns: int, gamma: Tensor | None, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.reshape(-1, columns)
    out, mean, inverse = torch.native_layer_norm(rows, [columns], gamma, beta, epsilon)
    return out.reshape(x.shape), mean.reshape(-1), inverse.reshape(-1)


def layer_norm_gradient(
    gradient: Tensor,
    x: Tensor,
    columns: int,
    mean: Tensor,
    inverse_deviation: Tensor,
    gamma: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    _same(gradient, x)
    rows, given = x.reshape(-1, columns), gradient.reshape(-1, columns)
    normal = (rows - mean[:, None]) * inverse_deviation[:, None]
    u = given if gamma is None else given * gamma
    of_x = inverse_deviation[:, None] * (
        u - u.mean(1, keepdim=True) - normal * (u * normal).mean(1, keepdim=True)
    )
    return of_x.reshape(x.shape), (given * normal).sum(0), given.sum(0)


def softmax(x: Tensor, columns: int) -> Tensor:
    assert x.shape[-1] == columns
    return x.softmax(-1).contiguous()


def softmax_gradient(gradient: Tensor, y: Tensor, columns: int) -> Tensor:
    _same(gradient, y)
    assert y.shape[-1] == columns
    return ((gradient - (gradient * y).sum(-1, keepdim=True)) * y).contiguous()


def embedding_gradient(gradient: Tensor, ids: Tensor, rows: int, padding: int) -> Tensor:
    made: Tensor = torch.ops.aten.embedding_dense_backward(gradient, ids, rows, padding, False)
    return made


def batched_product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return (a.transpose(1, 2) if transpose_a else a) @ (b.transpose(1, 2) if transpose_b else b)


def permute(x: Tensor, order: list[int]) -> Tensor:
    return x.permute(order).contiguous()


for _kernel in (
    average_pool, average_pool_gradient, batched_product, embedding_gradient, grid_convolution,
    grid_convolution_input_gradient, grid_convolution_weight_gradient, grid_max_pool, grid_max_pool_gradient, layer_norm,
    layer_norm_gradient, permute, softmax, softmax_gradient,
):  # fmt: skip
    _LIBRARY.impl(_kernel.__name__, _kernel, "CPU")
