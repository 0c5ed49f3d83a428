"""Dense and grouped convolutions of any kernel, stride, padding and dilation, in inference operators.

With w as a matrix [O, C·taps], and the patches of x (what every window sees) as a matrix [C·taps, B·pixels]:

    y  = w · patches       the runtime's Conv does that, one example at a time; over a few pixels one product is faster
    ∂w = ∂y · patchesᵀ     as one product with the patches, or tap by tap, which needs not keep them
    ∂x   is wᵀ · ∂y, each row added where the patch came from: ConvTranspose; over a few pixels by a constant matrix

Two forms that look natural were slower, and stay where they win: ∂x as a convolution with flipped kernels spends its time
on flipping (11 times eager's over 512 channels), ∂w as a convolution whose kernel is ∂y on products of 9 columns (2 times).
"""

from __future__ import annotations

import numpy as np

from export.onnx.graph import GraphBuilder
from export.onnx.operators.geometry import Geometry, Pair, tap_places

ONE_GEMM_PIXELS = 256
"""∂w of a 1 x 1 convolution is one product over the whole batch up to so many pixels, one per example above."""

POINTWISE_PIXELS = 9
"""A 1 x 1 convolution and its ∂x are one product over the whole batch up to so many pixels: the runtime's convolution
reads the whole weight once per example."""

PATCHES_PIXELS = 16
"""y is one product with the patches up to so many of its pixels; ∂w reads the same patches."""

PATCHES_GRADIENT_PIXELS = 64
"""∂w is one product with the patches up to so many pixels of y, and a product per tap above."""

MOST_TAPS, FEWEST_CHANNELS = 25, 16
"""∂w of a larger kernel, or of fewer input channels, is a convolution whose kernel is ∂y."""

PLACED_PIXELS = 49
"""∂x is put together by a constant matrix up to so many pixels of x."""

FLIPPED_PIXELS = 2048
"""∂x is a convolution with flipped kernels from so many pixels on."""


def forward(graph: GraphBuilder, g: Geometry, x: str, w: str, bias: str | None, frozen: bool) -> str:
    """A frozen weight is a constant, and the runtime knows best what to do with it."""
    patches = None
    if g.pointwise and g.pixels <= POINTWISE_PIXELS:
        patches = _channel_rows(graph, g, x, g.in_channels)
    elif _by_patches(g) and g.output_pixels <= PATCHES_PIXELS:
        patches = _patches(graph, g, x)
    if patches and not frozen:
        weight = graph.reshape(w, g.out_channels, g.in_channels * g.taps)
        rows = () if bias is None else (graph.reshape(bias, g.out_channels, 1),)
        return _examples_first(graph, g, graph.call("Gemm", weight, patches, *rows), g.out_channels)
    return graph.call(
        "Conv",
        *((x, w) if bias is None else (x, w, bias)),
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=(*g.padding, *g.padding),
        dilations=g.dilation,
        group=g.groups,
    )


def input_gradient(graph: GraphBuilder, g: Geometry, dy: str, w: str) -> str:
    """∂x [B, C, H, W]."""
    pads = tuple(reach - 1 - padding for reach, padding in zip(g.reach, g.padding, strict=True))
    if g.pointwise and g.pixels <= POINTWISE_PIXELS:
        weight = graph.reshape(w, g.out_channels, g.in_channels)
        rows = _channel_rows(graph, g, dy, g.out_channels)
        return _examples_first(graph, g, graph.call("Gemm", weight, rows, transA=1), g.in_channels)
    large = g.groups > 1 or g.taps == 1 or g.pixels >= FLIPPED_PIXELS
    if g.stride == (1, 1) and min(pads) >= 0 and large:
        return graph.call(
            "Conv",
            dy,
            _flipped(graph, g, w),
            kernel_shape=g.kernel,
            pads=(*pads, *pads),
            dilations=g.dilation,
            group=g.groups,
        )
    if _by_patches(g) and g.pixels <= PLACED_PIXELS:
        return _placed_gradient(graph, g, dy, w)
    return graph.call(
        "ConvTranspose",
        dy,
        w,
        kernel_shape=g.kernel,
        strides=g.stride,
        pads=(*g.padding, *g.padding),
        output_padding=g.uncovered,
        dilations=g.dilation,
        group=g.groups,
    )


def weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    """∂w, of w's shape."""
    if g.pointwise:
        return _pointwise_weight_gradient(graph, g, dy, x)
    if not _by_patches(g):
        return _correlated_weight_gradient(graph, g, dy, x)
    rows = _channel_rows(graph, g, dy, g.out_channels)
    if g.output_pixels <= PATCHES_GRADIENT_PIXELS:
        gradient = graph.call("Gemm", rows, _patches(graph, g, x), transB=1)
        return graph.reshape(gradient, g.out_channels, g.in_channels, *g.kernel)
    products = [graph.call("Gemm", rows, seen, transB=1) for seen in _seen_by_taps(graph, g, x)]
    taps_first = graph.reshape(
        graph.call("Concat", *products, axis=0), *g.kernel, g.out_channels, g.in_channels
    )
    return graph.transpose(taps_first, 2, 3, 0, 1)


def _by_patches(g: Geometry) -> bool:
    return g.groups == 1 and g.taps <= MOST_TAPS and g.in_channels >= FEWEST_CHANNELS and not g.pointwise


def _patches(graph: GraphBuilder, g: Geometry, x: str) -> str:
    """[C·taps, B·pixels]: what every tap sees."""
    rows = [
        graph.reshape(seen, g.in_channels, 1, g.batch * g.output_pixels)
        for seen in _seen_by_taps(graph, g, x)
    ]
    joined = graph.call("Concat", *rows, axis=1)
    return graph.reshape(joined, g.in_channels * g.taps, g.batch * g.output_pixels)


def _seen_by_taps(graph: GraphBuilder, g: Geometry, x: str) -> list[str]:
    """[C, B·pixels] for every tap."""
    padded = graph.transpose(x, 1, 0, 2, 3)
    if any(g.padding):
        padded = graph.call("Pad", padded, graph.integers(0, 0, *g.padding, 0, 0, *g.padding))
    spans = [stride * (size - 1) + 1 for stride, size in zip(g.stride, g.output, strict=True)]
    seen = []
    for i, j in np.ndindex(*g.kernel):
        starts = (i * g.dilation[0], j * g.dilation[1])
        ends = (starts[0] + spans[0], starts[1] + spans[1])
        bounds = (graph.integers(*bound) for bound in (starts, ends, (2, 3), g.stride))
        seen.append(
            graph.reshape(graph.call("Slice", padded, *bounds), g.in_channels, g.batch * g.output_pixels)
        )
    return seen


def _channel_rows(graph: GraphBuilder, g: Geometry, value: str, channels: int) -> str:
    """[B, channels, Ho, Wo] -> [channels, B·pixels]"""
    return graph.reshape(graph.transpose(value, 1, 0, 2, 3), channels, g.batch * g.output_pixels)


def _examples_first(graph: GraphBuilder, g: Geometry, rows: str, channels: int) -> str:
    """And back."""
    return graph.transpose(graph.reshape(rows, channels, g.batch, *g.output), 1, 0, 2, 3)


def _placed_gradient(graph: GraphBuilder, g: Geometry, dy: str, w: str) -> str:
    weight = graph.reshape(w, g.out_channels, g.in_channels * g.taps)
    of_patches = graph.call("Gemm", weight, _channel_rows(graph, g, dy, g.out_channels), transA=1)
    parted = graph.reshape(of_patches, g.in_channels, g.taps, g.batch, g.output_pixels)
    rows = graph.reshape(
        graph.transpose(parted, 2, 0, 1, 3), g.batch * g.in_channels, g.taps * g.output_pixels
    )
    places = tap_places(g).transpose(0, 2, 1).reshape(g.taps * g.output_pixels, g.pixels)
    return graph.reshape(graph.matmul(rows, graph.constant(places.copy())), g.batch, g.in_channels, *g.image)


def _correlated_weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    """A convolution whose batch axis is the input channel and whose kernel is ∂y."""
    x, image, ends = covered(graph, g, x)
    of_group = g.in_channels // g.groups
    parted = graph.reshape(x, g.batch, g.groups, of_group, *image)
    gradient = graph.call(
        "Conv",
        graph.reshape(graph.transpose(parted, 2, 1, 0, 3, 4), of_group, g.groups * g.batch, *image),
        graph.transpose(dy, 1, 0, 2, 3),
        kernel_shape=g.output,
        strides=g.dilation,
        dilations=g.stride,
        pads=(*g.padding, *ends),
        group=g.groups,
    )  # [C/groups, O, k, k]
    return graph.transpose(gradient, 1, 0, 2, 3)


def covered(graph: GraphBuilder, g: Geometry, x: str) -> tuple[str, Pair, Pair]:
    """x without the rows and columns at its end that no window reaches, its size, and what padding is left there."""
    image = [g.image[axis] - max(0, g.uncovered[axis] - g.padding[axis]) for axis in (0, 1)]
    for axis in (0, 1):
        if image[axis] != g.image[axis]:
            x = graph.slice(x, 2 + axis, 0, image[axis])
    ends = [max(0, g.padding[axis] - g.uncovered[axis]) for axis in (0, 1)]
    return x, (image[0], image[1]), (ends[0], ends[1])


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


def _flipped(graph: GraphBuilder, g: Geometry, w: str) -> str:
    """The kernels turned by half a turn, with input and output channels exchanged within every group."""
    inside, outside = g.in_channels // g.groups, g.out_channels // g.groups
    if inside > 1 or outside > 1:
        parted = graph.reshape(w, g.groups, outside, inside, g.taps)
        w = graph.transpose(parted, 0, 2, 1, 3)
    flat = graph.reshape(w, g.in_channels, outside, g.taps)
    if g.taps > 1:
        backwards = graph.constant(np.arange(g.taps, dtype=np.int64)[::-1].copy())
        flat = graph.call("Gather", flat, backwards, axis=2)
    return graph.reshape(flat, g.in_channels, outside, *g.kernel)
