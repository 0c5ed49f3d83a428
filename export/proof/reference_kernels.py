"""The operators of `ondevice/native` in plain torch, in any precision: importing this file makes a rewritten graph runnable.

In float64 there is no rounding to allow for, so a rewrite that is wrong shows at once, without ExecuTorch, whose lowering of
one network takes seconds.  What this proves is the rewrite; `tests/native/test_kernels.py` proves the kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn import grad

import export.executorch.operators  # noqa: F401  # declares the operators
from export.executorch.formulas import Activation

_LIBRARY = torch.library.Library("fedss", "IMPL")


def _turned(x: Tensor) -> Tensor:
    """[C, B, H, W] <-> [B, C, H, W]"""
    return x.transpose(0, 1).contiguous()


def _per_plane(vector: Tensor) -> Tensor:
    """[B, C] -> [C, B, 1, 1]"""
    return vector.t()[:, :, None, None]


def _per_channel(vector: Tensor) -> Tensor:
    return vector[:, None, None, None]


def _same(a: Tensor, b: Tensor) -> None:
    """The kernels do not broadcast, so neither may their reference."""
    assert a.shape == b.shape, f"{list(a.shape)} meets {list(b.shape)}"


def activate(x: Tensor, activation: int) -> Tensor:
    match Activation(activation):
        case Activation.NONE:
            return x.clone()
        case Activation.RELU:
            return F.relu(x)
        case Activation.HARDSWISH:
            return F.hardswish(x)
        case Activation.HARDSIGMOID:
            return F.hardsigmoid(x)
        case Activation.RELU6:
            return F.relu6(x)
        case Activation.SIGMOID:
            return torch.sigmoid(x)
        case Activation.SILU:
            return F.silu(x)
        case Activation.TANH:
            return torch.tanh(x)
        case Activation.GELU:
            return F.gelu(x)
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")
        case Activation.SOFTPLUS:
            return F.softplus(x)


def activation_gradient(gradient: Tensor, x: Tensor, activation: int) -> Tensor:
    _same(gradient, x)
    x_gradient: Tensor
    match Activation(activation):
        case Activation.NONE:
            x_gradient = gradient.clone()
        case Activation.RELU:
            x_gradient = torch.ops.aten.threshold_backward(gradient, x, 0)
        case Activation.HARDSWISH:
            x_gradient = torch.ops.aten.hardswish_backward(gradient, x)
        case Activation.HARDSIGMOID:
            x_gradient = torch.ops.aten.hardsigmoid_backward(gradient, x)
        case Activation.RELU6:
            x_gradient = torch.ops.aten.hardtanh_backward(gradient, x, 0, 6)
        case Activation.SIGMOID:
            x_gradient = torch.ops.aten.sigmoid_backward(gradient, torch.sigmoid(x))
        case Activation.SILU:
            x_gradient = torch.ops.aten.silu_backward(gradient, x)
        case Activation.TANH:
            x_gradient = torch.ops.aten.tanh_backward(gradient, torch.tanh(x))
        case Activation.GELU:
            x_gradient = torch.ops.aten.gelu_backward(gradient, x)
        case Activation.GELU_TANH:
            x_gradient = torch.ops.aten.gelu_backward(gradient, x, approximate="tanh")
        case Activation.SOFTPLUS:
            x_gradient = torch.ops.aten.softplus_backward(gradient, x, 1, 20)
    return x_gradient


def _spread_moments(x: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1 / deviation of every plane's group, as [C, B, 1, 1]."""
    mean, inverse = moments.repeat_interleave(x.shape[0] // moments.shape[1], 1)[..., None, None]
    return mean, inverse


def _normalised(x: Tensor, moments: Tensor | None, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    if moments is None or gamma is None or beta is None:
        assert moments is gamma is beta is None
        return x
    mean, inverse = _spread_moments(x, moments)
    return (x - mean) * inverse * _per_channel(gamma) + _per_channel(beta)


def _value(
    x: Tensor, moments: Tensor | None, gamma: Tensor | None, beta: Tensor | None, activation: int
) -> Tensor:
    return activate(_normalised(x, moments, gamma, beta), activation)


def product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool, start: Tensor | None) -> Tensor:
    result = (a.t() if transpose_a else a) @ (b.t() if transpose_b else b)
    return result if start is None else result + start


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _turned(F.conv2d(x.transpose(0, 1), weight, bias))


def pointwise_input_gradient(gradient: Tensor, weight: Tensor, start: Tensor | None) -> Tensor:
    x_gradient = torch.einsum("oc,obhw->cbhw", weight[:, :, 0, 0], gradient)
    if start is None:
        return x_gradient
    _same(x_gradient, start)
    return x_gradient + start


def pointwise_weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    return torch.einsum("obhw,cbhw->oc", gradient, x)[:, :, None, None].contiguous()


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, batch_first: bool
) -> Tensor:
    return _turned(F.conv2d(x if batch_first else x.transpose(0, 1), weight, bias, stride, padding))


def convolution_input_gradient(
    gradient: Tensor, weight: Tensor, stride: int, padding: int, height: int, width: int
) -> Tensor:
    sizes = (gradient.shape[1], weight.shape[1], height, width)
    return _turned(grad.conv2d_input(sizes, weight, gradient.transpose(0, 1), stride, padding))


def convolution_weight_gradient(
    gradient: Tensor, x: Tensor, kernel: int, stride: int, padding: int, batch_first: bool
) -> Tensor:
    images = x if batch_first else x.transpose(0, 1)
    sizes = (gradient.shape[0], images.shape[1], kernel, kernel)
    turned = gradient.transpose(0, 1)
    weight_gradient: Tensor = grad.conv2d_weight(images, sizes, turned, stride, padding)
    return weight_gradient


def depthwise(
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
    weight: Tensor,
    stride: int,
) -> Tensor:
    value = _value(x, moments, gamma, beta, activation).transpose(0, 1)
    return _turned(F.conv2d(value, weight, None, stride, weight.shape[2] // 2, groups=len(weight)))


def depthwise_input_gradient(
    gradient: Tensor, weight: Tensor, stride: int, height: int, width: int
) -> Tensor:
    sizes = (gradient.shape[1], len(weight), height, width)
    padding = weight.shape[2] // 2
    turned = gradient.transpose(0, 1)
    return _turned(grad.conv2d_input(sizes, weight, turned, stride, padding, groups=len(weight)))


def depthwise_weight_gradient(
    gradient: Tensor,
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
    kernel: int,
    stride: int,
) -> Tensor:
    value = _value(x, moments, gamma, beta, activation).transpose(0, 1)
    sizes = (len(x), 1, kernel, kernel)
    turned = gradient.transpose(0, 1)
    weight_gradient: Tensor = grad.conv2d_weight(value, sizes, turned, stride, kernel // 2, groups=len(x))
    return weight_gradient


def group_moments(x: Tensor, groups: int, epsilon: float) -> Tensor:
    grouped = (
        x.reshape(groups, -1, *x.shape[1:]).transpose(1, 2).flatten(2)
    )  # [groups, B, numbers of a group]
    return torch.stack([grouped.mean(2), (grouped.var(2, correction=0) + epsilon).rsqrt()])


def _spread(planes: Tensor | None, scale: Tensor | None, shift: Tensor | None, x: Tensor) -> Tensor:
    gradient = torch.zeros_like(x) if planes is None else planes
    _same(gradient, x)
    if scale is not None:
        gradient = gradient * _per_plane(scale)
    return gradient if shift is None else gradient + _per_plane(shift)


def group_norm_gradient(
    planes: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    x: Tensor,
    moments: Tensor,
    gamma: Tensor,
    beta: Tensor,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor]:
    gradient = _spread(planes, scale, shift, x)
    gradient = activation_gradient(gradient, _normalised(x, moments, gamma, beta), activation)
    mean, inverse = _spread_moments(x, moments)
    hat = (x - mean) * inverse

    def group_means(y: Tensor) -> Tensor:
        means = y.reshape(moments.shape[1], -1, *y.shape[1:]).mean((1, 3, 4))
        return means.repeat_interleave(len(x) // len(means), 0)[:, :, None, None]

    scaled = gradient * _per_channel(gamma)
    x_gradient = inverse * (scaled - group_means(scaled) - hat * group_means(scaled * hat))
    return x_gradient, (gradient * hat).sum((1, 2, 3)), gradient.sum((1, 2, 3))


def materialise(
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
    gate: Tensor | None,
    residual: Tensor | None,
) -> Tensor:
    value = _value(x, moments, gamma, beta, activation)
    if gate is not None:
        value = value * _per_plane(gate)
    if residual is None:
        return value
    _same(value, residual)
    return value + residual


def pointwise_value(*arguments: Any) -> Tensor:
    *gated_value, weight, bias = arguments
    return pointwise(materialise(*[*gated_value, None]), weight, bias)


def pointwise_value_weight_gradient(gradient: Tensor, *gated_value: Any) -> Tensor:
    return pointwise_weight_gradient(gradient, materialise(*[*gated_value, None]))


def pooled_mean(
    x: Tensor, moments: Tensor | None, gamma: Tensor | None, beta: Tensor | None, activation: int
) -> Tensor:
    return _value(x, moments, gamma, beta, activation).mean((2, 3)).t().contiguous()


def pooled_product(
    gradient: Tensor,
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
) -> Tensor:
    _same(gradient, x)
    return (gradient * _value(x, moments, gamma, beta, activation)).sum((2, 3)).t().contiguous()


def channel_sums(x: Tensor) -> Tensor:
    return x.sum((1, 2, 3))


def pixels(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    assert images.dtype == torch.uint8
    assert scale.shape == shift.shape == (images.shape[1], 1, 1)
    return images.to(scale.dtype) * scale - shift


def max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    return F.max_pool2d(x, kernel, stride, padding)


def max_pool_gradient(gradient: Tensor, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    pooled, indices = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    _same(gradient, pooled)
    window = ([kernel] * 2, [stride] * 2, [padding] * 2, [1, 1], False)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    x_gradient: Tensor = backward(gradient.contiguous(), x, *window, indices)
    return x_gradient


# BatchNorm with frozen statistics.


def frozen_moments(mean: Tensor, variance: Tensor, batch: int, epsilon: float) -> Tensor:
    moments = torch.stack([mean, (variance + epsilon).rsqrt()])
    return moments[:, :, None].expand(-1, -1, batch).contiguous()


def frozen_norm_gradient(
    planes: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    x: Tensor,
    moments: Tensor,
    gamma: Tensor,
    beta: Tensor,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor]:
    gradient = _spread(planes, scale, shift, x)
    gradient = activation_gradient(gradient, _normalised(x, moments, gamma, beta), activation)
    mean, inverse = _spread_moments(x, moments)
    of_gamma = (gradient * (x - mean) * inverse).sum((1, 2, 3))
    return gradient * _per_channel(gamma) * inverse, of_gamma, gradient.sum((1, 2, 3))


for _kernel in (
    activate, activation_gradient, channel_sums, convolution, convolution_input_gradient, convolution_weight_gradient,
    depthwise, depthwise_input_gradient, depthwise_weight_gradient, frozen_moments, frozen_norm_gradient, group_moments,
    group_norm_gradient, materialise, max_pool, max_pool_gradient, pixels, pointwise, pointwise_input_gradient,
    pointwise_value, pointwise_value_weight_gradient, pointwise_weight_gradient, pooled_mean, pooled_product, product,
):  # fmt: skip
    _LIBRARY.impl(_kernel.__name__, _kernel, "CPU")
