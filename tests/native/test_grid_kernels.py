"""Convolutions and poolings by windows of any kind, and BatchNorm with frozen statistics, against torch and autograd."""

from __future__ import annotations

import numpy as np
import torch
from helpers.native.kernel_cases import BY_NAME, assert_close, random, sweep
from helpers.native.kernels import AverageBy, Grid, Kernels, PlaneGradient, shape_of, value_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
grids = st.builds(
    lambda kernel, stride, padding, dilation: Grid(*kernel, *stride, *padding, *dilation),
    st.tuples(st.integers(1, 7), st.integers(1, 9)),
    pairs,
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    pairs,
)
images = st.tuples(st.integers(1, 3), st.integers(1, 14), st.integers(1, 21))


def planes(batch_first: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return batch_first.detach().transpose(0, 1).float().contiguous().numpy()


def steps(grid: Grid) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    return (
        (grid.stride_height, grid.stride_width),
        (grid.padding_height, grid.padding_width),
        (grid.dilation_height, grid.dilation_width),
    )


def fitted(grid: Grid, height: int, width: int, pools: bool = False) -> Grid:
    """The same window, or one that fits the padded planes; that of a pooling is padded by half of it at most."""
    kernel = min(grid.kernel_height, height), min(grid.kernel_width, width)
    padding = grid.padding_height, grid.padding_width
    if pools:
        padding = min(padding[0], kernel[0] // 2), min(padding[1], kernel[1] // 2)
    dilation = tuple(
        by if size + 2 * pad > (taps - 1) * by else 1
        for size, pad, taps, by in zip(
            (height, width), padding, kernel, (grid.dilation_height, grid.dilation_width), strict=True
        )
    )
    return Grid(*kernel, grid.stride_height, grid.stride_width, *padding, *dilation)


@sweep
@given(grids, images, st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_depthwise_by_any_window_and_its_gradients(
    kernels: Kernels,
    grid: Grid,
    image: tuple[int, int, int],
    channels: int,
    multiplier: int,
    with_bias: bool,
) -> None:
    batch, height, width = image
    grid = fitted(grid, height, width)
    x = torch.from_numpy(random(0, batch, channels, height, width)).double().requires_grad_()
    sizes = (channels * multiplier, 1, grid.kernel_height, grid.kernel_width)
    weight = torch.from_numpy(random(1, *sizes)).double().requires_grad_()
    bias = random(2, channels * multiplier) if with_bias else None
    expected = F.conv2d(
        x, weight, None if bias is None else torch.from_numpy(bias).double(), *steps(grid), channels
    )
    gradient = torch.from_numpy(random(3, *expected.shape)).double()
    of_x, of_weight = torch.autograd.grad(expected, [x, weight], gradient)
    given_x, weights, g = planes(x), weight.detach().float().numpy(), planes(gradient)
    out = np.full(g.shape, np.nan, np.float32)
    kernels.grid_depthwise(given_x, shape_of(given_x), weights, bias, grid, out, shape_of(out), 0, sizes[0])
    assert_close(out, planes(expected))
    out = np.full(given_x.shape, np.nan, np.float32)
    kernels.grid_depthwise_input_gradient(g, shape_of(g), weights, grid, out, shape_of(out), 0, channels)
    assert_close(out, planes(of_x))
    out = np.full(weights.shape, np.nan, np.float32)
    kernels.grid_depthwise_weight_gradient(g, shape_of(g), given_x, shape_of(given_x), grid, out, 0, sizes[0])
    assert_close(out, of_weight, float(gradient.norm()))


@sweep
@given(grids, images, st.integers(1, 3))
def test_patches_of_any_window_and_back(
    kernels: Kernels, grid: Grid, image: tuple[int, int, int], channels: int
) -> None:
    batch, height, width = image
    grid = fitted(grid, height, width)
    stride, padding, dilation = steps(grid)
    x = torch.from_numpy(random(0, batch, channels, height, width)).double().requires_grad_()
    kernel = (grid.kernel_height, grid.kernel_width)
    patches = F.unfold(x, kernel, dilation, padding, stride)  # [B, C * taps, windows]
    gradient = torch.from_numpy(random(1, *patches.shape)).double()
    (of_x,) = torch.autograd.grad(patches, [x], gradient)
    reach = [(taps - 1) * by + 1 for taps, by in zip(kernel, dilation, strict=True)]
    made = [
        (size + 2 * pad - far) // step + 1
        for size, pad, far, step in zip((height, width), padding, reach, stride, strict=True)
    ]
    given_x = planes(x)
    out_shape = shape_of(np.empty((channels, batch, *made), np.float32))
    first = batch // 2
    count = batch - first
    rows = patches.shape[1]
    out = np.full((rows, count, made[0] * made[1]), np.nan, np.float32)
    kernels.gather_grid(given_x, shape_of(given_x), out_shape, grid, first, count, out, 0, rows)
    assert_close(out, patches.detach()[first:].transpose(0, 1))
    back = given_x.copy()
    turned = gradient[first:].transpose(0, 1).float().contiguous().numpy()
    kernels.scatter_grid(turned, out_shape, grid, first, count, back, shape_of(back), 0, channels)
    assert_close(np.ascontiguousarray(back[:, first:]), planes(of_x)[:, first:])
    np.testing.assert_array_equal(back[:, :first], given_x[:, :first])


@sweep
@given(grids, images, st.integers(1, 3), st.booleans())
def test_max_pool_by_any_window_and_its_gradient(
    kernels: Kernels, grid: Grid, image: tuple[int, int, int], channels: int, ceil: bool
) -> None:
    batch, height, width = image
    grid = fitted(grid, height, width, pools=True)
    if ceil or grid.padding_height or grid.padding_width:
        # Where a window has no pixel at all, torch writes outside its own memory.
        grid = grid._replace(dilation_height=1, dilation_width=1)
    # Few distinct numbers: ties, where the first one counts.
    x = torch.from_numpy(np.round(2 * random(0, batch, channels, height, width))).requires_grad_()
    kernel = (grid.kernel_height, grid.kernel_width)
    expected = F.max_pool2d(x, kernel, *steps(grid), ceil)
    gradient = torch.from_numpy(random(1, *expected.shape))
    (of_x,) = torch.autograd.grad(expected, [x], gradient)
    given_x, g = planes(x), planes(gradient)
    out = np.full(g.shape, np.nan, np.float32)
    kernels.grid_max_pool(given_x, shape_of(given_x), grid, out, shape_of(out), 0, channels)
    np.testing.assert_array_equal(out, planes(expected))
    out = np.full(given_x.shape, np.nan, np.float32)
    kernels.grid_max_pool_gradient(g, shape_of(g), given_x, shape_of(given_x), grid, out, 0, channels)
    assert_close(out, planes(of_x))


@sweep
@given(grids, images, st.booleans(), st.booleans(), st.sampled_from([0, 5]))
def test_average_pool_and_its_gradient(
    kernels: Kernels, grid: Grid, image: tuple[int, int, int], ceil: bool, count_padding: bool, divisor: int
) -> None:
    batch, height, width = image
    grid = fitted(grid._replace(dilation_height=1, dilation_width=1), height, width, pools=True)
    x = torch.from_numpy(random(0, batch, 2, height, width)).double().requires_grad_()
    stride, padding, _ = steps(grid)
    kernel = (grid.kernel_height, grid.kernel_width)
    expected = F.avg_pool2d(x, kernel, stride, padding, ceil, count_padding, divisor or None)
    gradient = torch.from_numpy(random(1, *expected.shape)).double()
    (of_x,) = torch.autograd.grad(expected, [x], gradient)
    given_x, g, by = planes(x), planes(gradient), AverageBy(divisor, int(count_padding))
    out = np.full(g.shape, np.nan, np.float32)
    kernels.average_pool(given_x, shape_of(given_x), grid, by, out, shape_of(out), 0, 2)
    assert_close(out, planes(expected))
    out = np.full(given_x.shape, np.nan, np.float32)
    kernels.average_pool_gradient(g, shape_of(g), shape_of(out), grid, by, out, 0, 2)
    assert_close(out, planes(of_x))


@sweep
@given(
    st.sampled_from(tuple(BY_NAME)),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40)),
    st.sets(st.sampled_from(["planes", "scale", "shift"]), min_size=1),
)
def test_frozen_norm_and_its_gradient(
    kernels: Kernels, activation: str, sizes: tuple[int, int, int], parts: set[str]
) -> None:
    batch, channels, side = sizes
    x = torch.from_numpy(3 + 2 * random(0, batch, channels, side, 3)).double().requires_grad_()
    gamma, beta = (torch.from_numpy(random(i, channels)).double().requires_grad_() for i in (1, 2))
    mean, variance = 3 + random(3, channels), 1 + np.square(random(4, channels))
    moments = np.full((2, channels, batch), np.nan, np.float32)
    kernels.frozen_moments(mean, variance, channels, batch, 1e-5, moments, 0, channels)
    normal = F.batch_norm(
        x, torch.from_numpy(mean).double(), torch.from_numpy(variance).double(), gamma, beta
    )
    value = BY_NAME[activation](normal)
    formula = value_of(
        planes(x), moments, gamma.detach().float().numpy(), beta.detach().float().numpy(), activation
    )
    out = np.full(planes(x).shape, np.nan, np.float32)
    kernels.materialise(formula, None, None, out, 0, channels)
    assert_close(out, planes(value))

    given_planes = random(5, *out.shape) if "planes" in parts or "scale" in parts else None
    scale = random(6, batch, channels) if "scale" in parts else None
    shift = random(7, batch, channels) if "shift" in parts else None
    gradient = torch.zeros_like(x)
    if given_planes is not None:
        gradient = torch.from_numpy(given_planes).double().transpose(0, 1)
    if scale is not None:
        gradient = gradient * torch.from_numpy(scale)[:, :, None, None]
    if shift is not None:
        gradient = gradient + torch.from_numpy(shift)[:, :, None, None]
    expected = torch.autograd.grad(value, [x, gamma, beta], gradient)
    outs = [np.full(size, np.nan, np.float32) for size in (out.shape, channels, channels)]
    kernels.frozen_norm_gradient(PlaneGradient(given_planes, scale, shift), formula, *outs, 0, channels)
    summed = float(gradient.norm()) * float(np.abs(moments).max())
    assert_close(outs[0], planes(expected[0]))
    assert_close(outs[1], expected[1], summed)
    assert_close(outs[2], expected[2], summed)
