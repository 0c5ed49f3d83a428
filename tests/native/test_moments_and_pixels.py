"""The kernels that sum or scale whole planes, against float64: moments, sums of channels, long products, pixels."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.native.kernel_cases import assert_close, random, sweep
from helpers.native.kernels import Kernels, Matrix, PlaneGradient, Product, shape_of, value_of
from hypothesis import given
from hypothesis import strategies as st


def test_channel_sums(kernels: Kernels) -> None:
    x, out = random(0, 3, 2, 5, 7), np.full(3, np.nan, np.float32)
    kernels.channel_sums(x, shape_of(x), out, 0, 3)
    assert_close(out, x.astype(np.float64).sum((1, 2, 3)))


def test_moments_survive_a_mean_far_from_zero(kernels: Kernels) -> None:
    x = 1000 + random(0, 4, 1, 6, 6)
    moments = np.full((2, 1, 1), np.nan, np.float32)
    kernels.group_moments(x, shape_of(x), 1, 1e-5, moments, 0, 1)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(moments.ravel(), [exact.mean(), 1 / exact.std()], rtol=1e-5)


@pytest.mark.parametrize("size", [8, 24, 96])
def test_the_moments_of_nearly_flat_planes_are_those_of_float64(kernels: Kernels, size: int) -> None:
    """Equal numbers round the same way as they are added up: the mean must not drift away from them."""
    x = np.ascontiguousarray(np.broadcast_to(random(0, 4, 3, 1, 1), (4, 3, size, size)))
    x[:, :, 0, 0] += 0.5
    moments = np.empty((2, 4, 3), np.float32)
    kernels.group_moments(x, shape_of(x), 4, 1e-5, moments, 0, 4)
    exact = x.astype(np.float64)
    inverse = 1 / np.sqrt(exact.var((2, 3)) + 1e-5)
    off = np.abs(moments[0] - exact.mean((2, 3)))
    assert (off <= 1.5 * np.spacing(np.abs(moments[0]))).all()
    np.testing.assert_allclose(moments[1], inverse, rtol=1e-4)


def test_the_moments_of_a_flat_plane_are_exact(kernels: Kernels) -> None:
    """Sums of equal numbers all round the same way, and GroupNorm magnifies what the mean is off by 1/√ε."""
    grey = np.float32(0.7)
    x = np.full((2, 1, 96, 96), grey)
    moments = np.full((2, 1, 1), np.nan, np.float32)
    kernels.group_moments(x, shape_of(x), 1, 1e-5, moments, 0, 1)
    np.testing.assert_allclose(moments.ravel(), [grey, 1e-5**-0.5], rtol=2e-7)


def test_long_sums_of_equal_numbers_stay_near_float64(kernels: Kernels) -> None:
    """Of a flat picture at 224 px all additions round the same way: a sum must not be one long chain of them."""
    x = np.full((1, 1, 112, 112), 0.7, np.float32)
    x[..., ::2] = -0.3
    exact = x.astype(np.float64)
    moments = np.empty((2, 1, 1), np.float32)
    kernels.group_moments(x, shape_of(x), 1, 1e-5, moments, 0, 1)
    np.testing.assert_allclose(moments.ravel(), [exact.mean(), (exact.var() + 1e-5) ** -0.5], rtol=3e-6)
    mean, total = np.empty((1, 1), np.float32), np.empty(1, np.float32)
    kernels.pooled_mean(value_of(x), mean, 0, 1)
    kernels.channel_sums(x, shape_of(x), total, 0, 1)
    np.testing.assert_allclose([*mean[0], *total], [exact.mean(), exact.sum()], rtol=3e-6)
    gradients = [np.empty(size, np.float32) for size in (x.shape, 1, 1)]
    plain = value_of(x, moments, np.ones(1, np.float32), np.zeros(1, np.float32), "none")
    kernels.group_norm_gradient(PlaneGradient(x, None, None), plain, *gradients, 0, 1)
    of_gamma = (exact * (exact - moments[0, 0]) * moments[1, 0]).sum()
    np.testing.assert_allclose(np.ravel(gradients[1:]), [of_gamma, exact.sum()], rtol=3e-6)


def test_a_long_product_of_equal_numbers_stays_near_float64(kernels: Kernels) -> None:
    """The weight gradient of a flat picture at 224 px, in tiles that are whole and in those that are not."""
    rows, columns, depth = 17, 29, 112 * 112
    a, b = np.full((rows, depth), 0.7, np.float32), np.full((depth, columns), 0.3, np.float32)
    out = np.empty((rows, columns), np.float32)
    product = Product(
        rows, columns, depth, Matrix(a, depth, 1), Matrix(b, columns, 1), Matrix(None, 0, 0), out, columns
    )
    kernels.product(product, 0, kernels.product_pieces(product))
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-5)


@sweep
@given(st.data())
def test_pixels_are_scaled_and_shifted_by_channel(kernels: Kernels, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(1, most)) for most in (3, 4, 9, 40))
    draw = np.random.default_rng(data.draw(st.integers(0, 100)))
    images = draw.integers(0, 256, shape, np.uint8)
    scale, shift = (draw.uniform(0.001, 3, shape[1]).astype(np.float32) for _ in range(2))
    out = np.full(shape, np.nan, np.float32)
    sizes = (shape[1], shape[2] * shape[3])
    kernels.pixels(images, *sizes, scale, shift, out, 0, shape[0] * shape[1])
    spread = (array.astype(np.float64)[:, None, None] for array in (scale, shift))
    terms = images * next(spread)
    expected = terms - next(spread)
    # One rounding of the product at the most, one of the difference.
    assert (np.abs(out - expected) <= 2**-24 * (np.abs(terms) + np.abs(expected))).all()
