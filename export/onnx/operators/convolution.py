"""Convolutions and their gradients in inference operators, each in the form that ONNX Runtime runs fastest.

A runtime for inference has no `convolution_backward`, but both gradients are linear maps that its other kernels
compute.  With x the input, w the weight, y the output and ∂y its gradient:

    dense 1 x 1    y is a matrix product, so are both gradients
    depthwise      ∂x is a depthwise convolution with the flipped kernel; ∂w correlates x with ∂y, one channel at a time
    other dense    ∂x is a convolution with flipped, transposed kernels (a transposed one if strided);
                   ∂w is a convolution whose batch axis is the input channel and whose kernel is ∂y

The weights are graph inputs, so the runtime cannot repack them: what is fast for constant weights is not what is
fast here, and every choice below was raced against the alternatives, on CPU time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from export.onnx.graph import GraphBuilder
from export.onnx.operators.group_norm import row_products
from ondevice.contract.vocabulary import FloatArray

TOEPLITZ_PIXELS = 49
"""A depthwise convolution over a plane of at most so many pixels is a product with its whole matrix."""

ONE_GEMM_PIXELS = 256
"""∂w of a 1 x 1 convolution is one product over the whole batch up to so many pixels, one per example above."""

SHIFTED_PRODUCTS_PIXELS = 784
"""∂w of a depthwise 3 x 3 convolution is 9 sums of shifted products from so many pixels on."""

ROW_PHASES = 7
"""∂w of the other depthwise convolution: into how many interleaved sets of rows ∂y is split, at the most."""


@dataclass(frozen=True)
class Geometry:
    """The sizes of a convolution.  Pairs are (height, width)."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    image: tuple[int, int]
    output: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @property
    def pixels(self) -> int:
        return self.image[0] * self.image[1]

    @property
    def output_pixels(self) -> int:
        return self.output[0] * self.output[1]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def depthwise(self) -> bool:
        return self.groups == self.in_channels == self.out_channels

    @property
    def pointwise(self) -> bool:
        return self.groups == 1 and self.kernel == self.stride == (1, 1) and self.padding == (0, 0)

    @property
    def uncovered(self) -> tuple[int, int]:
        """Rows and columns of the padded input, at its end, that no window reaches because of the stride."""
        height, width = (
            self.image[axis]
            + 2 * self.padding[axis]
            - self.stride[axis] * (self.output[axis] - 1)
            - self.kernel[axis]
            for axis in (0, 1)
        )
        return height, width


def forward(graph: GraphBuilder, g: Geometry, x: str, w: str, bias: str | None, frozen: bool) -> str:
    """x [B, C, H, W] -> y [B, O, Ho, Wo].  A frozen weight is a constant, and the runtime knows best what to do with it."""
    if g.depthwise and g.pixels <= TOEPLITZ_PIXELS and bias is None and not frozen:
        product = graph.matmul(_channels_first(graph, x, g.in_channels, g.pixels), _toeplitz(graph, g, w))
        return _examples_first(graph, product, g.out_channels, g.output)
    return graph.call(
        "Conv",
        *((x, w) if bias is None else (x, w, bias)),
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=(*g.padding, *g.padding),
        group=g.groups,
    )


def input_gradient(graph: GraphBuilder, g: Geometry, dy: str, w: str) -> str:
    """∂x [B, C, H, W]."""
    if g.pointwise:
        # A convolution with the transposed weight: the runtime's 1 x 1 path is a bare GEMM, and unlike MatMul it
        # does not broadcast the weight over the batch.
        transposed = graph.transpose(graph.reshape(w, g.out_channels, g.in_channels), 1, 0)
        kernel = graph.reshape(transposed, g.in_channels, g.out_channels, 1, 1)
        return graph.call("Conv", dy, kernel, kernel_shape=(1, 1))
    if g.depthwise and g.pixels <= TOEPLITZ_PIXELS:
        transposed = graph.transpose(_toeplitz(graph, g, w), 0, 2, 1)
        product = graph.matmul(_channels_first(graph, dy, g.out_channels, g.output_pixels), transposed)
        return _examples_first(graph, product, g.in_channels, g.image)
    if g.stride == (1, 1):
        pads = tuple(kernel - 1 - padding for kernel, padding in zip(g.kernel, g.padding, strict=True))
        flipped = _flipped(graph, g, w)
        return graph.call("Conv", dy, flipped, kernel_shape=g.kernel, pads=(*pads, *pads), group=g.groups)
    return graph.call(
        "ConvTranspose",
        dy,
        w,
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=(*g.padding, *g.padding),
        output_padding=g.uncovered,
        group=g.groups,
    )


def weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    """∂w, of w's shape."""
    if g.pointwise:
        return _pointwise_weight_gradient(graph, g, dy, x)
    if g.depthwise and g.pixels <= TOEPLITZ_PIXELS:
        # ∂(matrix) of every channel, then the sum over the places where each tap stands in it.
        pixels_first = graph.transpose(graph.reshape(x, g.batch, g.in_channels, g.pixels), 1, 2, 0)
        matrices = graph.matmul(pixels_first, _channels_first(graph, dy, g.out_channels, g.output_pixels))
        flat = graph.reshape(matrices, g.in_channels, g.pixels * g.output_pixels)
        placed = graph.constant(_tap_places(g).reshape(g.taps, -1).T.copy())
        return graph.reshape(graph.matmul(flat, placed), g.out_channels, 1, *g.kernel)
    if g.depthwise and g.stride == (1, 1) and g.taps <= 9 and g.pixels >= SHIFTED_PRODUCTS_PIXELS:
        return _shifted_products(graph, g, dy, x)
    if g.depthwise:
        return _depthwise_weight_gradient(graph, g, dy, x)
    return _dense_weight_gradient(graph, g, dy, x)


def _pointwise_weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    dy_flat = graph.reshape(dy, g.batch, g.out_channels, g.pixels)
    x_flat = graph.reshape(x, g.batch, g.in_channels, g.pixels)
    if g.pixels <= ONE_GEMM_PIXELS:
        dy_rows = graph.reshape(graph.transpose(dy_flat, 1, 0, 2), g.out_channels, -1)  # [O, B·HW]
        x_rows = graph.reshape(graph.transpose(x_flat, 1, 0, 2), g.in_channels, -1)  # [C, B·HW]
        gradient = graph.call("Gemm", dy_rows, x_rows, transB=1)
    else:
        gradient = graph.sum(graph.matmul(dy_flat, graph.transpose(x_flat, 0, 2, 1)), 0)
    return graph.reshape(gradient, g.out_channels, g.in_channels, 1, 1)


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
        shifted = graph.slice(x_flat, 1, i * pitch + j, i * pitch + j + length)
        taps.append(row_products(graph, shifted, dy_flat, (g.batch, g.in_channels, 1), length))
    return graph.reshape(graph.sum(graph.call("Concat", *taps, axis=2), 0), g.out_channels, 1, *g.kernel)


def _depthwise_weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
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
    # Row shifts between x and ∂y that the convolution computes.
    shifts = (phases - 1) * g.stride[0] + g.kernel[0]
    correlations = graph.call(
        "Conv",
        graph.reshape(x, 1, planes, *g.image),
        graph.reshape(kernels, planes * phases, 1, rows, g.output[1]),
        kernel_shape=(rows, g.output[1]),
        dilations=(g.stride[0] * phases, g.stride[1]),
        pads=(*g.padding, g.padding[0] - g.uncovered[0], g.padding[1] - g.uncovered[1]),
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


def _dense_weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    crop = [max(0, g.uncovered[axis] - g.padding[axis]) for axis in (0, 1)]
    for axis, rows in enumerate(crop):
        if rows:
            x = graph.slice(x, 2 + axis, 0, g.image[axis] - rows)
    gradient = graph.call(
        "Conv",
        graph.transpose(x, 1, 0, 2, 3),
        graph.transpose(dy, 1, 0, 2, 3),
        kernel_shape=g.output,
        dilations=g.stride,
        pads=(*g.padding, *(max(0, g.padding[axis] - g.uncovered[axis]) for axis in (0, 1))),
    )  # [C, O, k, k]
    return graph.transpose(gradient, 1, 0, 2, 3)


def _flipped(graph: GraphBuilder, g: Geometry, w: str) -> str:
    """The kernels turned by half a turn and, where dense, with input and output channels exchanged."""
    if not g.depthwise:
        w = graph.transpose(w, 1, 0, 2, 3)
    backwards = graph.constant(np.arange(g.taps, dtype=np.int64)[::-1].copy())
    flat = graph.reshape(w, g.in_channels, -1, g.taps)
    return graph.reshape(graph.call("Gather", flat, backwards, axis=2), g.in_channels, -1, *g.kernel)


def _toeplitz(graph: GraphBuilder, g: Geometry, w: str) -> str:
    """A depthwise convolution written out as one matrix per channel: [C, H·W, Ho·Wo]."""
    placed = graph.matmul(
        graph.reshape(w, g.out_channels, g.taps), graph.constant(_tap_places(g).reshape(g.taps, -1))
    )
    return graph.reshape(placed, g.out_channels, g.pixels, g.output_pixels)


def _tap_places(g: Geometry) -> FloatArray:
    """[taps, H·W, Ho·Wo], 1 where the tap connects the input pixel with the output pixel."""
    places = np.zeros((*g.kernel, *g.image, *g.output), np.float32)
    for i, j, row, column in np.ndindex(*g.kernel, *g.output):
        y, x = row * g.stride[0] + i - g.padding[0], column * g.stride[1] + j - g.padding[1]
        if 0 <= y < g.image[0] and 0 <= x < g.image[1]:
            places[i, j, y, x, row, column] = 1
    return places.reshape(g.taps, g.pixels, g.output_pixels)


def _channels_first(graph: GraphBuilder, value: str, channels: int, pixels: int) -> str:
    """[B, C, H, W] -> [C, B, H·W]."""
    return graph.transpose(graph.reshape(value, -1, channels, pixels), 1, 0, 2)


def _examples_first(graph: GraphBuilder, value: str, channels: int, image: tuple[int, int]) -> str:
    """[C, B, H·W] -> [B, C, H, W]."""
    return graph.reshape(graph.transpose(value, 1, 0, 2), -1, channels, *image)
