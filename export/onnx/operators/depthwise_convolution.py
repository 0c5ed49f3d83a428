"""Depthwise convolutions, one channel at a time, in the form that ONNX Runtime runs fastest.

∂x is a depthwise convolution with the flipped kernel; ∂w correlates x with ∂y.  Over small planes each is a product with the
channel's whole matrix.
"""

from __future__ import annotations

import numpy as np

from export.onnx.graph import GraphBuilder
from export.onnx.operators.dense_convolution import covered
from export.onnx.operators.geometry import Geometry, Pair, tap_places
from export.onnx.operators.group_norm import row_products

TOEPLITZ_PIXELS = 49
"""A depthwise convolution over a plane of at most so many pixels is a product with its whole matrix."""

SHIFTED_PRODUCTS_PIXELS = 784
"""∂w of a depthwise 3 x 3 convolution is 9 sums of shifted products from so many pixels on."""

ROW_PHASES = 7
"""∂w of the other depthwise convolution: into how many interleaved sets of rows ∂y is split, at the most."""


def as_matrices(g: Geometry) -> bool:
    """Whether the planes are small enough for whole matrices."""
    return g.depthwise and g.pixels <= TOEPLITZ_PIXELS


def forward(graph: GraphBuilder, g: Geometry, x: str, w: str) -> str:
    """By whole matrices."""
    product = graph.matmul(_channels_first(graph, x, g.in_channels, g.pixels), _toeplitz(graph, g, w))
    return _examples_first(graph, product, g.out_channels, g.output)


def input_gradient(graph: GraphBuilder, g: Geometry, dy: str, w: str) -> str:
    """By whole matrices."""
    transposed = graph.transpose(_toeplitz(graph, g, w), 0, 2, 1)
    product = graph.matmul(_channels_first(graph, dy, g.out_channels, g.output_pixels), transposed)
    return _examples_first(graph, product, g.in_channels, g.image)


def weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    if as_matrices(g):
        # ∂(matrix) of every channel, then the sum over the places where each tap stands in it.
        pixels_first = graph.transpose(graph.reshape(x, g.batch, g.in_channels, g.pixels), 1, 2, 0)
        matrices = graph.matmul(pixels_first, _channels_first(graph, dy, g.out_channels, g.output_pixels))
        flat = graph.reshape(matrices, g.in_channels, g.pixels * g.output_pixels)
        placed = graph.constant(tap_places(g).reshape(g.taps, -1).T.copy())
        return graph.reshape(graph.matmul(flat, placed), g.out_channels, 1, *g.kernel)
    if g.stride == (1, 1) and g.taps <= 9 and g.pixels >= SHIFTED_PRODUCTS_PIXELS:
        return _shifted_products(graph, g, dy, x)
    return _by_row_phases(graph, g, dy, x)


def _shifted_products(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    """∂w at a tap is the inner product of ∂y with the plane x shifted by the tap.

    Give the rows of ∂y the pitch of the padded rows of x: then a shift in two dimensions is one offset into the flat
    plane, a slice is one contiguous copy, and the zeros between the rows of ∂y cancel what wraps around.
    """
    (top, left), (rows, columns) = g.padding, g.output
    height, pitch = g.image[0] + 2 * top, g.image[1] + 2 * left
    length = (rows - 1) * pitch + columns
    planes = g.batch * g.in_channels
    x_flat = graph.reshape(
        graph.call("Pad", x, graph.integers(0, 0, top, left, 0, 0, top, left)), planes, height * pitch
    )
    dy_pitched = graph.call("Pad", dy, graph.integers(0, 0, 0, 0, 0, 0, 0, pitch - columns))
    dy_flat = graph.slice(graph.reshape(dy_pitched, planes, rows * pitch), 1, 0, length)
    taps = []
    for i, j in np.ndindex(*g.kernel):
        offset = i * g.dilation[0] * pitch + j * g.dilation[1]
        shifted = graph.slice(x_flat, 1, offset, offset + length)
        taps.append(row_products(graph, shifted, dy_flat, (g.batch, g.in_channels, 1), length))
    return graph.reshape(graph.sum(graph.call("Concat", *taps, axis=2), 0), g.out_channels, 1, *g.kernel)


def _by_row_phases(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    """A grouped convolution with one group per (example, channel) pair: x is its image, ∂y its kernel.

    As it stands every group would be a product of one row by many, which the GEMM kernels are slow at.  So ∂y is
    split into `phases` interleaved sets of rows, one kernel each: the image is unfolded once for all of them, and
    the matrix on the left has `phases` rows.  The price is that every kernel also meets windows of other
    phases; a constant 0/1 matrix picks the wanted ones and adds them up.
    """
    planes = g.batch * g.out_channels
    phases = max(count for count in range(1, ROW_PHASES + 1) if g.output[0] % count == 0)
    rows = g.output[0] // phases
    kernels = graph.transpose(graph.reshape(dy, planes, rows, phases, g.output[1]), 0, 2, 1, 3)
    image, sizes, ends = covered(graph, g, x)
    # Row shifts between x and ∂y that the convolution computes.
    shifts = (phases - 1) * g.stride[0] + g.kernel[0]
    correlations = graph.call(
        "Conv",
        graph.reshape(image, 1, planes, *sizes),
        graph.reshape(kernels, planes * phases, 1, rows, g.output[1]),
        kernel_shape=(rows, g.output[1]),
        dilations=(g.stride[0] * phases, g.stride[1]),
        pads=(*g.padding, *ends),
        group=planes,
    )  # [1, planes · phases, shifts, kernel width]
    summed = graph.sum(graph.reshape(correlations, g.batch, g.out_channels, -1), 0)
    wanted = np.zeros((phases, shifts, g.kernel[1], *g.kernel), np.float32)
    for phase in range(phases):
        for i in range(g.kernel[0]):
            for j in range(g.kernel[1]):
                wanted[phase, g.stride[0] * phase + i, j, i, j] = 1
    gradient = graph.matmul(summed, graph.constant(wanted.reshape(-1, g.taps)))
    return graph.reshape(gradient, g.out_channels, 1, *g.kernel)


def _toeplitz(graph: GraphBuilder, g: Geometry, w: str) -> str:
    """A depthwise convolution written out as one matrix per channel: [C, H·W, Ho·Wo]."""
    placed = graph.matmul(
        graph.reshape(w, g.out_channels, g.taps), graph.constant(tap_places(g).reshape(g.taps, -1))
    )
    return graph.reshape(placed, g.out_channels, g.pixels, g.output_pixels)


def _channels_first(graph: GraphBuilder, value: str, channels: int, pixels: int) -> str:
    """[B, C, H, W] -> [C, B, H·W]."""
    return graph.transpose(graph.reshape(value, -1, channels, pixels), 1, 0, 2)


def _examples_first(graph: GraphBuilder, value: str, channels: int, image: Pair) -> str:
    """[C, B, H·W] -> [B, C, H, W]."""
    return graph.reshape(graph.transpose(value, 1, 0, 2), -1, channels, *image)
