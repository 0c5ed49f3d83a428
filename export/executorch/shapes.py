"""The shapes that the operators of `ondevice/native` put out, and which arguments fit each other.

Arguments that do not fit are an error here, while the program is written; the operators check them once more where they run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from export.executorch.formulas import Activation


def expect(what: str, tensor: Tensor | None, *sizes: int) -> None:
    """That an argument, if it is given, has these sizes."""
    if tensor is not None and tuple(tensor.shape) != sizes:
        raise ValueError(
            f"{what} is {list(tensor.shape)}; expected {list(sizes)}, which fits the operator's other arguments: "
            "the rewrite (export/executorch/rewrite.py) put tensors together that do not belong together"
        )


def expect_planes(what: str, tensor: Tensor) -> None:
    if tensor.dim() != 4:
        raise ValueError(f"{what} is {list(tensor.shape)}; expected planes [C, B, H, W]")


def _convolved(
    what: str, x: Sequence[int], channels: int, window: tuple[int, int, int]
) -> tuple[int, int, int, int]:
    """The planes that a window makes of planes."""
    kernel, stride, padding = window
    height, width = x[2:]
    if kernel < 1 or stride < 1 or padding < 0 or min(height, width) + 2 * padding < kernel:
        raise ValueError(
            f"{what} has kernel {kernel}, stride {stride} and padding {padding} on planes of {height} x {width}; "
            "expected a window that fits the padded planes"
        )
    return (
        channels,
        x[1],
        (height + 2 * padding - kernel) // stride + 1,
        (width + 2 * padding - kernel) // stride + 1,
    )


def _planes_of(x: Tensor, batch_first: bool) -> tuple[int, int, int, int]:
    """[C, B, H, W] of images that may lie as [B, C, H, W]."""
    first, second, height, width = x.shape
    return (second, first, height, width) if batch_first else (first, second, height, width)


def expect_value(
    x: Tensor, moments: Tensor | None, gamma: Tensor | None, beta: Tensor | None, activation: int
) -> None:
    expect_planes("x of a value", x)
    if len({part is None for part in (moments, gamma, beta)}) != 1:
        raise ValueError("a value has some of moments, gamma and beta; expected all of them or none")
    if moments is not None:
        groups = moments.shape[1]
        expect("moments of a value", moments, 2, groups, x.shape[1])
        if x.shape[0] % groups:
            raise ValueError(
                f"a value has {groups} groups of {x.shape[0]} channels; expected groups of one size"
            )
    expect("gamma of a value", gamma, x.shape[0])
    expect("beta of a value", beta, x.shape[0])
    Activation(activation)


def product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool, start: Tensor | None) -> Tensor:
    rows, depth = reversed(a.shape) if transpose_a else a.shape
    columns = b.shape[0 if transpose_b else 1]
    expect("b of product", b, *((columns, depth) if transpose_b else (depth, columns)))
    expect(
        "start of product",
        start,
        *((columns,) if start is not None and start.dim() == 1 else (rows, columns)),
    )
    return a.new_empty(rows, columns)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    expect_planes("x of pointwise", x)
    channels = weight.shape[0]
    expect("weight of pointwise", weight, channels, x.shape[0], 1, 1)
    expect("bias of pointwise", bias, channels)
    return x.new_empty(channels, *x.shape[1:])


def pointwise_input_gradient(gradient: Tensor, weight: Tensor, start: Tensor | None) -> Tensor:
    expect_planes("gradient of pointwise_input_gradient", gradient)
    channels = weight.shape[1]
    expect("weight of pointwise_input_gradient", weight, gradient.shape[0], channels, 1, 1)
    expect("start of pointwise_input_gradient", start, channels, *gradient.shape[1:])
    return gradient.new_empty(channels, *gradient.shape[1:])


def pointwise_weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    expect_planes("x of pointwise_weight_gradient", x)
    expect("gradient of pointwise_weight_gradient", gradient, gradient.shape[0], *x.shape[1:])
    return x.new_empty(gradient.shape[0], x.shape[0], 1, 1)


def pointwise_value(
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
    gate: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    expect_value(x, moments, gamma, beta, activation)
    expect("gate of pointwise_value", gate, x.shape[1], x.shape[0])
    return pointwise(x, weight, bias)


def pointwise_value_weight_gradient(
    gradient: Tensor,
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
    gate: Tensor | None,
) -> Tensor:
    expect_value(x, moments, gamma, beta, activation)
    expect("gate of pointwise_value_weight_gradient", gate, x.shape[1], x.shape[0])
    return pointwise_weight_gradient(gradient, x)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, batch_first: bool
) -> Tensor:
    expect_planes("x of convolution", x)
    planes, channels, kernel = _planes_of(x, batch_first), weight.shape[0], weight.shape[2]
    expect("weight of convolution", weight, channels, planes[0], kernel, kernel)
    expect("bias of convolution", bias, channels)
    return x.new_empty(_convolved("convolution", planes, channels, (kernel, stride, padding)))


def convolution_input_gradient(
    gradient: Tensor, weight: Tensor, stride: int, padding: int, height: int, width: int
) -> Tensor:
    expect_planes("gradient of convolution_input_gradient", gradient)
    channels, kernel = weight.shape[1:3]
    x = (channels, gradient.shape[1], height, width)
    convolved = _convolved("convolution_input_gradient", x, gradient.shape[0], (kernel, stride, padding))
    expect("gradient of convolution_input_gradient", gradient, *convolved)
    expect("weight of convolution_input_gradient", weight, gradient.shape[0], channels, kernel, kernel)
    return gradient.new_empty(x)


def convolution_weight_gradient(
    gradient: Tensor, x: Tensor, kernel: int, stride: int, padding: int, batch_first: bool
) -> Tensor:
    expect_planes("x of convolution_weight_gradient", x)
    planes, channels = _planes_of(x, batch_first), gradient.shape[0]
    convolved = _convolved("convolution_weight_gradient", planes, channels, (kernel, stride, padding))
    expect("gradient of convolution_weight_gradient", gradient, *convolved)
    return gradient.new_empty(channels, planes[0], kernel, kernel)


def depthwise(
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
    weight: Tensor,
    stride: int,
) -> Tensor:
    expect_value(x, moments, gamma, beta, activation)
    channels, kernel = x.shape[0], weight.shape[2]
    expect("weight of depthwise", weight, channels, 1, kernel, kernel)
    return x.new_empty(_convolved("depthwise", x.shape, channels, (kernel, stride, kernel // 2)))


def depthwise_input_gradient(
    gradient: Tensor, weight: Tensor, stride: int, height: int, width: int
) -> Tensor:
    expect_planes("gradient of depthwise_input_gradient", gradient)
    x, kernel = (*gradient.shape[:2], height, width), weight.shape[2]
    convolved = _convolved("depthwise_input_gradient", x, x[0], (kernel, stride, kernel // 2))
    expect("gradient of depthwise_input_gradient", gradient, *convolved)
    expect("weight of depthwise_input_gradient", weight, x[0], 1, kernel, kernel)
    return gradient.new_empty(x)


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
    expect_value(x, moments, gamma, beta, activation)
    convolved = _convolved("depthwise_weight_gradient", x.shape, x.shape[0], (kernel, stride, kernel // 2))
    expect("gradient of depthwise_weight_gradient", gradient, *convolved)
    return x.new_empty(x.shape[0], 1, kernel, kernel)


def group_moments(x: Tensor, groups: int, _epsilon: float) -> Tensor:
    expect_planes("x of group_moments", x)
    if groups < 1 or x.shape[0] % groups:
        raise ValueError(
            f"group_moments has {groups} groups of {x.shape[0]} channels; expected groups of one size"
        )
    return x.new_empty(2, groups, x.shape[1])


def frozen_moments(mean: Tensor, variance: Tensor, batch: int, _epsilon: float) -> Tensor:
    expect("variance of frozen_moments", variance, *mean.shape)
    return mean.new_empty(2, mean.shape[0], batch)


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
    expect_value(x, moments, gamma, beta, activation)
    channels, batch = x.shape[:2]
    expect("planes of group_norm_gradient", planes, *x.shape)
    expect("scale of group_norm_gradient", scale, batch, channels)
    expect("shift of group_norm_gradient", shift, batch, channels)
    return torch.empty_like(x), x.new_empty(channels), x.new_empty(channels)


def materialise(
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
    gate: Tensor | None,
    residual: Tensor | None,
) -> Tensor:
    expect_value(x, moments, gamma, beta, activation)
    expect("gate of materialise", gate, x.shape[1], x.shape[0])
    expect("residual of materialise", residual, *x.shape)
    return torch.empty_like(x)


def pooled_mean(
    x: Tensor, moments: Tensor | None, gamma: Tensor | None, beta: Tensor | None, activation: int
) -> Tensor:
    expect_value(x, moments, gamma, beta, activation)
    return x.new_empty(x.shape[1], x.shape[0])


def pooled_product(
    gradient: Tensor,
    x: Tensor,
    moments: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    activation: int,
) -> Tensor:
    expect("gradient of pooled_product", gradient, *x.shape)
    return pooled_mean(x, moments, gamma, beta, activation)


def channel_sums(x: Tensor) -> Tensor:
    expect_planes("x of channel_sums", x)
    return x.new_empty(x.shape[0])


def pixels(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    expect_planes("images of pixels", images)
    if images.dtype != torch.uint8:
        raise ValueError(f"images of pixels are {images.dtype}; expected uint8")
    for name, constant in (("scale", scale), ("shift", shift)):
        expect(f"{name} of pixels", constant, images.shape[1], 1, 1)
    return scale.new_empty(images.shape)


def activate(x: Tensor, activation: int) -> Tensor:
    Activation(activation)
    return torch.empty_like(x)


def activation_gradient(gradient: Tensor, x: Tensor, activation: int) -> Tensor:
    expect("gradient of activation_gradient", gradient, *x.shape)
    return activate(x, activation)


def max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    expect_planes("x of max_pool", x)
    return x.new_empty(_convolved("max_pool", x.shape, x.shape[0], (kernel, stride, padding)))


def max_pool_gradient(gradient: Tensor, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    expect("gradient of max_pool_gradient", gradient, *max_pool(x, kernel, stride, padding).shape)
    return torch.empty_like(x)
