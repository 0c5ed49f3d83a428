"""The shapes of `ondevice/native/operators/grid.cpp`: windows with sizes of their own in height and in width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from export.executorch.shapes import expect, expect_planes

Pair = Sequence[int]


def _convolved(what: str, x: Pair, kernel: Pair, steps: tuple[Pair, Pair, Pair]) -> tuple[int, int]:
    """Height and width that a window makes of planes of this height and width."""
    made = []
    for size, taps, stride, padding, dilation in zip(x, kernel, *steps, strict=True):
        reach = (taps - 1) * dilation + 1
        if min(taps, stride, dilation) < 1 or padding < 0 or size + 2 * padding < reach:
            raise ValueError(
                f"{what} has kernel {list(kernel)} and stride, padding, dilation {[list(s) for s in steps]} on planes "
                f"of {list(x)}; expected a window that fits the padded planes"
            )
        made.append((size + 2 * padding - reach) // stride + 1)
    return made[0], made[1]


def _expect_pools(what: str, x: Pair, kernel: Pair, steps: tuple[Pair, Pair, Pair], made: Pair) -> None:
    """Torch may round the number of windows up, as long as each begins inside the plane or left of it."""
    _convolved(what, x, kernel, steps)
    for size, taps, stride, padding, dilation, windows in zip(x, kernel, *steps, made, strict=True):
        reach = (taps - 1) * dilation + 1
        if 2 * padding > reach or windows < 1 or (windows - 1) * stride >= size + padding:
            raise ValueError(
                f"{what} makes {list(made)} windows of planes of {list(x)}; expected each to have a pixel"
            )


def grid_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    expect_planes("x of grid_convolution", x)
    channels = weight.shape[0]
    expect("weight of grid_convolution", weight, channels, x.shape[0] // groups, *weight.shape[2:])
    expect("bias of grid_convolution", bias, channels)
    made = _convolved("grid_convolution", x.shape[2:], weight.shape[2:], (stride, padding, dilation))
    return x.new_empty(channels, x.shape[1], *made)


def grid_convolution_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    height: int,
    width: int,
) -> Tensor:
    expect_planes("gradient of grid_convolution_input_gradient", gradient)
    steps = (stride, padding, dilation)
    made = _convolved("grid_convolution_input_gradient", (height, width), weight.shape[2:], steps)
    expect(
        "gradient of grid_convolution_input_gradient",
        gradient,
        weight.shape[0],
        gradient.shape[1],
        *made,
    )
    return gradient.new_empty(weight.shape[1] * groups, gradient.shape[1], height, width)


def grid_convolution_weight_gradient(
    gradient: Tensor, x: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    expect_planes("x of grid_convolution_weight_gradient", x)
    steps = (stride, padding, dilation)
    made = _convolved("grid_convolution_weight_gradient", x.shape[2:], kernel, steps)
    expect("gradient of grid_convolution_weight_gradient", gradient, gradient.shape[0], x.shape[1], *made)
    return gradient.new_empty(gradient.shape[0], x.shape[0] // groups, *kernel)


def grid_max_pool(
    x: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, height: int, width: int
) -> Tensor:
    expect_planes("x of grid_max_pool", x)
    steps = (stride, padding, dilation)
    _expect_pools("grid_max_pool", x.shape[2:], kernel, steps, (height, width))
    return x.new_empty(*x.shape[:2], height, width)


def grid_max_pool_gradient(
    gradient: Tensor, x: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    steps = (stride, padding, dilation)
    expect_planes("gradient of grid_max_pool_gradient", gradient)
    _expect_pools("grid_max_pool_gradient", x.shape[2:], kernel, steps, gradient.shape[2:])
    expect("gradient of grid_max_pool_gradient", gradient, *x.shape[:2], *gradient.shape[2:])
    return torch.empty_like(x)


def average_pool(
    x: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    _divisor: int,
    _count_padding: bool,
    height: int,
    width: int,
) -> Tensor:
    return grid_max_pool(x, kernel, stride, padding, (1, 1), height, width)


def average_pool_gradient(
    gradient: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    _divisor: int,
    _count_padding: bool,
    height: int,
    width: int,
) -> Tensor:
    expect_planes("gradient of average_pool_gradient", gradient)
    steps = (stride, padding, (1, 1))
    _expect_pools("average_pool_gradient", (height, width), kernel, steps, gradient.shape[2:])
    return gradient.new_empty(*gradient.shape[:2], height, width)
