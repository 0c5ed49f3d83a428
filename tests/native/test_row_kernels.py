"""LayerNorm, softmax, the gradient of a table and the order of dimensions against torch and its autograd."""

from __future__ import annotations

import numpy as np
import torch
from helpers.native.kernel_cases import assert_close, random, sweep
from helpers.native.kernels import Extents, Kernels
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

matrices = st.tuples(st.integers(1, 9), st.integers(1, 70))


@sweep
@given(matrices, st.booleans())
def test_layer_norm_and_its_gradients(kernels: Kernels, sizes: tuple[int, int], affine: bool) -> None:
    rows, columns = sizes
    x = torch.from_numpy(1 + 2 * random(0, rows, columns)).double().requires_grad_()
    weights = [random(i, columns) for i in (1, 2)] if affine else [None, None]
    gamma, beta = (
        None if weight is None else torch.from_numpy(weight).double().requires_grad_() for weight in weights
    )
    expected = F.layer_norm(x, [columns], gamma, beta, 1e-3)
    gradient = torch.from_numpy(random(3, rows, columns)).double()
    of_x, *of_weights = torch.autograd.grad(
        expected, [leaf for leaf in (x, gamma, beta) if leaf is not None], gradient
    )
    given_x, g = x.detach().float().numpy(), gradient.float().numpy()
    out, mean, inverse = (np.full(size, np.nan, np.float32) for size in ((rows, columns), rows, rows))
    kernels.layer_norm(given_x, columns, *weights, 1e-3, out, mean, inverse, 0, rows)
    assert_close(out, expected.detach())
    kernels.layer_norm_gradient(g, given_x, columns, mean, inverse, weights[0], out, 0, rows)
    summed = float(gradient.norm()) * max(1, float(inverse.max()))  # terms that may cancel
    assert_close(out, of_x, summed)
    outs = [np.full(columns, np.nan, np.float32) for _ in range(2)]
    kernels.layer_norm_weight_gradient(g, given_x, rows, columns, mean, inverse, *outs, 0, columns)
    for found, right in zip(outs, of_weights, strict=False):
        assert_close(found, right, summed)


@sweep
@given(matrices, st.booleans())
def test_softmax_and_its_gradient(kernels: Kernels, sizes: tuple[int, int], masked: bool) -> None:
    numbers = 4 * random(0, *sizes)
    if masked:
        numbers[:, 1:] = np.where(random(2, sizes[0], sizes[1] - 1) > 0.5, -np.inf, numbers[:, 1:])
    x = torch.from_numpy(numbers).double().requires_grad_()
    expected = x.softmax(1)
    gradient = torch.from_numpy(random(1, *sizes)).double()
    (of_x,) = torch.autograd.grad(expected, [x], gradient)
    out = np.full(sizes, np.nan, np.float32)
    kernels.softmax(numbers, sizes[1], out, 0, sizes[0])
    assert_close(out, expected.detach())
    found = np.full(sizes, np.nan, np.float32)
    kernels.softmax_gradient(gradient.float().numpy(), out, sizes[1], found, 0, sizes[0])
    assert_close(found, of_x)


@sweep
@given(matrices, st.integers(0, 12), st.integers(-1, 8))
def test_rows_of_a_gradient_are_added_where_they_were_read(
    kernels: Kernels, sizes: tuple[int, int], count: int, padding: int
) -> None:
    rows, columns = sizes
    ids = np.random.default_rng(count).integers(0, rows, count)
    gradient = random(0, count, columns)
    out = np.full(sizes, np.nan, np.float32)
    kernels.embedding_gradient(gradient, ids, count, padding, out, rows, columns, 0, columns)
    kept = ids != padding
    expected = torch.zeros(rows, columns, dtype=torch.float64)
    expected.index_add_(0, torch.from_numpy(ids[kept]), torch.from_numpy(gradient[kept]).double())
    assert_close(out, expected)


@sweep
@given(st.tuples(*(st.integers(1, 20) for _ in range(4))), st.permutations(range(4)))
def test_dimensions_in_any_order(
    kernels: Kernels, sizes: tuple[int, int, int, int], order: list[int]
) -> None:
    x = random(0, *sizes)
    expected = np.ascontiguousarray(x.transpose(order))
    strides = Extents(*(stride // 4 for stride in x.transpose(order).strides))
    out = np.full(expected.shape, np.nan, np.float32)
    kernels.permute(x, Extents(*expected.shape), strides, out, 0, expected.shape[0] * expected.shape[1])
    np.testing.assert_array_equal(out, expected)
