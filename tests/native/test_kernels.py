"""Every kernel of `ondevice/native` against torch and its autograd, in every build (`conftest.py`).

`kernel_calls` guards the arrays, and cuts every range of items into pieces that it runs out of order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.native.kernel_cases import BY_NAME, assert_close, random, sweep
from helpers.native.kernels import (
    ACTIVATIONS,
    Kernels,
    Matrix,
    PlaneGradient,
    Product,
    Window,
    shape_of,
    value_of,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F


def planes(batch_first: Tensor) -> Tensor:
    """[B, C, H, W] as torch has it -> [C, B, H, W] as the kernels do."""
    return batch_first.transpose(0, 1)


@sweep
@given(st.data())
def test_product_in_every_orientation(kernels: Kernels, data: st.DataObject) -> None:
    # Small ones, and some that do not fit into what is packed at a time.
    rows = data.draw(st.integers(1, 40) | st.sampled_from([128, 131, 264]))
    columns = data.draw(st.integers(1, 40) | st.sampled_from([96, 107, 401]))
    depth = data.draw(st.integers(1, 600))
    transpose_a, transpose_b = data.draw(st.booleans()), data.draw(st.booleans())
    start_kind = data.draw(st.sampled_from(["none", "matrix", "row", "column"]))
    a, b = random(0, rows, depth), random(1, depth, columns)
    start = {
        "none": None,
        "matrix": random(2, rows, columns),
        "row": random(2, 1, columns),
        "column": random(2, rows, 1),
    }[start_kind]
    strides = {"none": (0, 0), "matrix": (columns, 1), "row": (0, 1), "column": (1, 0)}[start_kind]
    stored_a = np.ascontiguousarray(a.T) if transpose_a else a
    stored_b = np.ascontiguousarray(b.T) if transpose_b else b
    out = np.full((rows, columns), np.nan, np.float32)
    product = Product(
        rows,
        columns,
        depth,
        Matrix(stored_a, *((1, rows) if transpose_a else (depth, 1))),
        Matrix(stored_b, *((1, depth) if transpose_b else (columns, 1))),
        Matrix(start, *strides),
        out,
        columns,
    )
    kernels.product(product, 0, kernels.product_pieces(product))
    terms = float(
        np.sqrt(np.square(a) @ np.square(b)).max()
    )  # of one entry, which may cancel: float32 added in any order
    assert_close(out, a.astype(np.float64) @ b + (0 if start is None else start), terms)


@sweep
@given(
    # Of narrow planes as many channels as a register has lanes are convolved together.
    channels=st.integers(1, 10),
    batch=st.integers(1, 5),
    height=st.integers(1, 21),
    width=st.integers(1, 40),
    kernel=st.sampled_from([3, 5]),
    stride=st.sampled_from([1, 2]),
)
def test_depthwise_and_its_gradients(
    kernels: Kernels, *, channels: int, batch: int, height: int, width: int, kernel: int, stride: int
) -> None:
    x = torch.from_numpy(random(0, batch, channels, height, width)).double().requires_grad_()
    weight = torch.from_numpy(random(1, channels, 1, kernel, kernel)).double().requires_grad_()
    expected = F.conv2d(x, weight, stride=stride, padding=kernel // 2, groups=channels)
    gradient = torch.from_numpy(random(2, *expected.shape)).double()
    x_gradient, weight_gradient = torch.autograd.grad(expected, [x, weight], gradient)

    window = Window(kernel, stride, kernel // 2)
    x_planes = planes(x.detach()).float().contiguous().numpy()
    weights = weight.detach().float().numpy()
    gradient_planes = planes(gradient).float().contiguous().numpy()
    out = np.full(gradient_planes.shape, np.nan, np.float32)
    kernels.depthwise(value_of(x_planes), weights, window, out, 0, channels)
    assert_close(out, planes(expected.detach()))
    out = np.full(x_planes.shape, np.nan, np.float32)
    kernels.depthwise_input_gradient(
        gradient_planes,
        shape_of(gradient_planes),
        weights,
        window,
        out,
        shape_of(out),
        0,
        channels,
    )
    assert_close(out, planes(x_gradient))
    out = np.full(weights.shape, np.nan, np.float32)
    kernels.depthwise_weight_gradient(gradient_planes, value_of(x_planes), window, out, 0, channels)
    assert_close(out, weight_gradient)


class Norm:
    """activation(GroupNorm(x)) in torch, in double, and the arrays that the kernels take for it."""

    def __init__(
        self, kernels: Kernels, activation: str, batch: int, groups: int, per_group: int, side: int
    ) -> None:
        self.channels = groups * per_group
        self.groups = groups
        self.x = (
            torch.from_numpy(3 + 2 * random(0, batch, self.channels, side, side)).double().requires_grad_()
        )
        self.gamma = torch.from_numpy(random(1, self.channels)).double().requires_grad_()
        self.beta = torch.from_numpy(random(2, self.channels)).double().requires_grad_()
        self.value = BY_NAME[activation](F.group_norm(self.x, groups, self.gamma, self.beta))
        self.arrays = (
            planes(self.x.detach()).float().contiguous().numpy(),
            np.full((2, groups, batch), np.nan, np.float32),
            self.gamma.detach().float().numpy(),
            self.beta.detach().float().numpy(),
        )
        x, moments = self.arrays[:2]
        kernels.group_moments(x, shape_of(x), groups, 1e-5, moments, 0, groups)
        self.formula = value_of(*self.arrays, activation)


@sweep
@given(
    sizes=st.tuples(
        st.sampled_from(ACTIVATIONS),
        st.integers(1, 5),
        st.integers(1, 3),
        st.sampled_from([1, 2, 5, 30, 100]),  # also more channels than are packed at a time
        st.integers(2, 9),
    ),
    made=st.integers(1, 30) | st.sampled_from([130]),
    gated=st.booleans(),
)
def test_products_of_values(
    kernels: Kernels, *, sizes: tuple[str, int, int, int, int], made: int, gated: bool
) -> None:
    """A 1x1 convolution of activation(GroupNorm(x)) * gate, and its weight's gradient."""
    norm = Norm(kernels, *sizes)
    x = norm.arrays[0]
    channels, row = norm.channels, x[0].size
    gate = random(3, x.shape[1], channels) if gated else None
    gated_planes = planes(norm.value.detach())
    if gate is not None:
        gated_planes = gated_planes * torch.from_numpy(gate.T[:, :, None, None].astype(np.float64))
    value = gated_planes.reshape(channels, row).numpy()
    weight, gradient = random(4, made, channels), random(5, made, row)
    out = np.full((made, row), np.nan, np.float32)
    product = Product(
        made, row, channels, Matrix(weight, channels, 1), Matrix(x, row, 1), Matrix(None, 0, 0), out, row,
        norm.formula, gate,
    )  # fmt: skip
    kernels.product(product, 0, kernels.product_pieces(product))
    assert_close(out, weight @ value, float(np.sqrt(np.square(weight) @ np.square(value)).max()))
    out = np.full((made, channels), np.nan, np.float32)
    product = Product(
        made, channels, row, Matrix(gradient, row, 1), Matrix(x, 1, row), Matrix(None, 0, 0), out, channels,
        norm.formula, gate,
    )  # fmt: skip
    kernels.product(product, 0, kernels.product_pieces(product))
    assert_close(out, gradient @ value.T, float(np.sqrt(np.square(gradient) @ np.square(value.T)).max()))


norms = st.builds(
    lambda *sizes: sizes,
    st.sampled_from(ACTIVATIONS),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 9),
)


@sweep
@given(norms)
def test_the_normalised_value_its_mean_and_its_gate(
    kernels: Kernels, sizes: tuple[str, int, int, int, int]
) -> None:
    norm = Norm(kernels, *sizes)
    batch, channels = norm.value.shape[:2]
    gate, residual = random(3, batch, channels), random(4, *norm.arrays[0].shape)
    out = np.full(residual.shape, np.nan, np.float32)
    kernels.materialise(norm.formula, None, None, out, 0, channels)
    assert_close(out, planes(norm.value.detach()))
    kernels.materialise(norm.formula, gate, residual, out, 0, channels)
    gated = norm.value.detach() * torch.from_numpy(gate)[:, :, None, None]
    assert_close(out, planes(gated) + torch.from_numpy(residual))

    pooled = np.full((batch, channels), np.nan, np.float32)
    kernels.pooled_mean(norm.formula, pooled, 0, channels)
    assert_close(pooled, norm.value.detach().mean((2, 3)))
    kernels.pooled_product(residual, norm.formula, pooled, 0, channels)
    assert_close(pooled, (norm.value.detach() * planes(torch.from_numpy(residual))).sum((2, 3)))


@sweep
@given(norms, st.sampled_from(["planes", "planes scale", "planes scale shift", "shift"]))
def test_group_norm_gradient_of_every_form_of_gradient(
    kernels: Kernels, sizes: tuple[str, int, int, int, int], parts: str
) -> None:
    norm = Norm(kernels, *sizes)
    batch, channels = norm.value.shape[:2]
    x = norm.arrays[0]
    given_planes, scale, shift = random(3, *x.shape), random(4, batch, channels), random(5, batch, channels)
    gradient = planes(torch.from_numpy(given_planes)) if "planes" in parts else torch.zeros_like(norm.value)
    if "scale" in parts:
        gradient = gradient * torch.from_numpy(scale)[:, :, None, None]
    if "shift" in parts:
        gradient = gradient + torch.from_numpy(shift)[:, :, None, None]
    expected = torch.autograd.grad(norm.value, [norm.x, norm.gamma, norm.beta], gradient.double())

    formula = PlaneGradient(
        given_planes if "planes" in parts else None,
        scale if "scale" in parts else None,
        shift if "shift" in parts else None,
    )
    outs = [np.full(size, np.nan, np.float32) for size in (x.shape, channels, channels)]
    kernels.group_norm_gradient(formula, norm.formula, *outs, 0, norm.groups)
    # The value sits on a kink of the activation within float32's reach once in a million elements.
    assert_close(outs[0], planes(expected[0]))
    summed = float(
        gradient.norm()
    )  # of a gradient that is the same all over a plane, the terms of gamma's cancel
    assert_close(outs[1], expected[1], summed)
    assert_close(outs[2], expected[2], summed)


@sweep
@given(norms, st.sampled_from([3, 5]), st.sampled_from([1, 2]))
def test_depthwise_reads_a_normalised_input(
    kernels: Kernels, sizes: tuple[str, int, int, int, int], kernel: int, stride: int
) -> None:
    norm = Norm(kernels, *sizes)
    weight = torch.from_numpy(random(3, norm.channels, 1, kernel, kernel)).double().requires_grad_()
    expected = F.conv2d(norm.value, weight, stride=stride, padding=kernel // 2, groups=norm.channels)
    gradient = torch.from_numpy(random(4, *expected.shape)).double()
    (weight_gradient,) = torch.autograd.grad(expected, [weight], gradient)
    weights = weight.detach().float().numpy()
    window = Window(kernel, stride, kernel // 2)
    out = np.full(planes(expected).shape, np.nan, np.float32)
    kernels.depthwise(norm.formula, weights, window, out, 0, norm.channels)
    assert_close(out, planes(expected.detach()))
    out = np.full(weights.shape, np.nan, np.float32)
    gradients = planes(gradient).float().contiguous().numpy()
    kernels.depthwise_weight_gradient(gradients, norm.formula, window, out, 0, norm.channels)
    assert_close(out, weight_gradient)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_their_gradients(kernels: Kernels, activation: str) -> None:
    x = torch.from_numpy(3 * random(0, 1003)).requires_grad_()
    gradient = random(1, 1003)
    expected = BY_NAME[activation](x)
    (x_gradient,) = torch.autograd.grad(expected, [x], torch.from_numpy(gradient))
    index, given_x, out = ACTIVATIONS.index(activation), x.detach().numpy(), np.full(1003, np.nan, np.float32)
    kernels.activate(given_x, index, out, 0, 1003)
    assert_close(out, expected.detach())
    kernels.activation_gradient(gradient, given_x, index, out, 0, 1003)
    assert_close(out, x_gradient)


def test_softplus_is_right_to_float32_however_small_it_is(kernels: Kernels) -> None:
    """The loss of a rare class is some millionths, and there are a hundred thousand of them."""
    x = np.linspace(-40, 40, 4001, dtype=np.float32)
    out = np.full(x.shape, np.nan, np.float32)
    kernels.activate(x, ACTIVATIONS.index("softplus"), out, 0, len(x))
    np.testing.assert_allclose(out, np.logaddexp(0, x.astype(np.float64)), rtol=4e-7)


@sweep
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(5, 13), st.integers(5, 13),
    st.sampled_from([(2, 2, 0), (3, 2, 1), (3, 1, 0)]),
)  # fmt: skip
def test_max_pool_and_its_gradient(
    kernels: Kernels, channels: int, batch: int, height: int, width: int, window: tuple[int, int, int]
) -> None:
    # Few distinct numbers: ties, where the first one counts.
    x = torch.from_numpy(np.round(2 * random(0, batch, channels, height, width))).requires_grad_()
    expected = F.max_pool2d(x, *window)
    gradient = torch.from_numpy(random(1, *expected.shape))
    (x_gradient,) = torch.autograd.grad(expected, [x], gradient)
    x_planes = planes(x.detach()).contiguous().numpy()
    gradients = planes(gradient).contiguous().numpy()
    out = np.full(gradients.shape, np.nan, np.float32)
    kernels.max_pool(x_planes, shape_of(x_planes), Window(*window), out, shape_of(out), 0, channels)
    assert_close(out, planes(expected.detach()))
    back = np.full(x_planes.shape, np.nan, np.float32)
    shapes = (shape_of(gradients), shape_of(x_planes))
    kernels.max_pool_gradient(
        gradients,
        shapes[0],
        x_planes,
        shapes[1],
        Window(*window),
        back,
        0,
        channels,
    )
    assert_close(back, planes(x_gradient))


@sweep
@given(
    channels=st.integers(1, 3),
    height=st.integers(5, 12),
    width=st.integers(5, 12),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
)
def test_patches_are_torchs_unfold_and_scatter_is_its_adjoint(
    kernels: Kernels, *, channels: int, height: int, width: int, kernel: int, stride: int, padding: int
) -> None:
    image = torch.from_numpy(random(0, 1, channels, height, width)).requires_grad_()
    expected = F.unfold(image, kernel, padding=padding, stride=stride)[0]
    gradient = random(1, *expected.shape)
    (image_gradient,) = torch.autograd.grad(expected, [image], torch.from_numpy(gradient))
    x = image.detach().numpy()[0]
    window = Window(kernel, stride, padding)
    out_height, out_width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    x_shape, out_shape = (
        shape_of(array) for array in (x[:, None], np.empty((channels, 1, out_height, out_width), np.float32))
    )
    patches = np.full(expected.shape, np.nan, np.float32)
    kernels.gather_patches(x, height * width, x_shape, out_shape, window, patches, 0, len(patches))
    np.testing.assert_array_equal(patches, expected.detach())
    back = np.full(x.shape, np.nan, np.float32)
    kernels.scatter_patches(gradient, out_shape, window, back, height * width, x_shape, 0, channels)
    assert_close(back, image_gradient[0])
