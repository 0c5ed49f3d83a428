"""Whole layers as ONNX formulations: convolution, GroupNorm and max-pooling, each with its gradient.

What a traced node says is read here; how the runtime computes it fastest is decided in `convolution.py` and
`group_norm.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import fx

from export.onnx.operators import convolution as onnx_convolution
from export.onnx.operators import group_norm as onnx_group_norm
from export.onnx.translation import Translation, Value, refused, shape_of
from export.unsupported_operator import UnsupportedOperator


def convolution(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    w: fx.Node,
    bias: fx.Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Sequence[int],
    groups: int,
) -> Value:
    geometry = _geometry(
        x, w, node, stride=stride, padding=padding, dilation=dilation, transposed=transposed, groups=groups
    )
    bias_name = None if bias is None else t.full(bias)
    frozen = w.op == "get_attr"
    name = onnx_convolution.forward(t.graph, geometry, t.full(x), t.full(w), bias_name, frozen)
    return Value(name, shape_of(node))


def convolution_backward(
    t: Translation,
    _: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    w: fx.Node,
    __: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    ___: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:
    geometry = _geometry(
        x, w, dy, stride=stride, padding=padding, dilation=dilation, transposed=transposed, groups=groups
    )
    output = t.full(dy)
    dx = dw = d_bias = None
    if wanted[0]:
        dx = Value(onnx_convolution.input_gradient(t.graph, geometry, output, t.full(w)), shape_of(x))
    if wanted[1]:
        dw = Value(onnx_convolution.weight_gradient(t.graph, geometry, output, t.full(x)), shape_of(w))
    if wanted[2]:
        d_bias = Value(t.graph.sum(output, 0, 2, 3), (geometry.out_channels,))
    return dx, dw, d_bias


def _geometry(
    x: fx.Node,
    w: fx.Node,
    y: fx.Node,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> onnx_convolution.Geometry:
    batch, in_channels, *image = shape_of(x)
    out_channels, _, *kernel = shape_of(w)
    depthwise = groups == in_channels == out_channels
    if transposed or set(dilation) != {1} or len(image) != 2 or not (groups == 1 or depthwise):
        raise UnsupportedOperator(
            f"a convolution of {in_channels} to {out_channels} channels over {len(image)} axes with {groups=}, "
            f"{dilation=}, {transposed=}; there are ONNX formulations of dense and of depthwise convolutions over "
            "images, without dilation: add one to export/onnx/operators/convolution.py"
        )
    return onnx_convolution.Geometry(
        batch=batch,
        in_channels=in_channels,
        out_channels=out_channels,
        groups=groups,
        image=(image[0], image[1]),
        output=(shape_of(y)[2], shape_of(y)[3]),
        kernel=(kernel[0], kernel[1]),
        stride=(stride[0], stride[1]),
        padding=(padding[0], padding[1]),
    )


def group_norm(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    scale: fx.Node | None,
    shift: fx.Node | None,
    __: int,
    ___: int,
    ____: int,
    groups: int,
    epsilon: float,
) -> tuple[Value, ...]:
    shape = shape_of(x)
    if scale is None or shift is None or len(shape) != 4:
        raise refused(node, "GroupNorm is formulated for images, with a weight and a bias")
    grouping = onnx_group_norm.Grouping(shape, groups)
    y, mean, inverse = onnx_group_norm.forward(
        t.graph, grouping, t.full(x), t.full(scale), t.full(shift), epsilon
    )
    statistics = (shape[0], groups, 1)  # one axis more than ATen's: only our own backward pass reads them
    return Value(y, shape), Value(mean, statistics), Value(inverse, statistics)


def group_norm_backward(
    t: Translation,
    _: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    mean: fx.Node,
    inverse: fx.Node,
    scale: fx.Node,
    __: int,
    ___: int,
    ____: int,
    groups: int,
    _____: Sequence[bool],
) -> tuple[Value, ...]:
    shape, channels = shape_of(x), shape_of(scale)
    dx, d_scale, d_shift = onnx_group_norm.backward(
        t.graph,
        onnx_group_norm.Grouping(shape, groups),
        t.full(dy),
        t.full(x),
        t.full(scale),
        mean=t.compact(mean).name,
        inverse=t.compact(inverse).name,
    )
    return Value(dx, shape), Value(d_scale, channels), Value(d_shift, channels)


def max_pool(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    _: bool = False,
) -> tuple[Value, ...]:
    """A ceiling gives windows that reach beyond the image: padding at its end, as far as the last window goes, says
    the same, and does not depend on how a runtime rounds."""
    image, output = shape_of(x)[2:], tuple(node.meta["val"][0].shape)
    if len(image) != 2:
        raise refused(node, "max-pooling is formulated for batches of images")
    kernel, dilation, padding = _pair(kernel), _pair(dilation), _pair(padding)
    stride = _pair(stride) if stride else kernel
    ends = tuple(
        max(padding[axis], (output[2 + axis] - 1) * stride[axis] + reach - image[axis] - padding[axis])
        for axis, reach in enumerate(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    )
    if any(end >= size for end, size in zip(ends, kernel, strict=True)):
        raise refused(node, "ONNX Runtime wants padding that is smaller than the kernel")
    names = t.graph.call_many(
        "MaxPool",
        2,
        t.full(x),
        kernel_shape=kernel,
        strides=stride,
        pads=(*padding, *ends),
        dilations=dilation,
    )
    return tuple(Value(name, output) for name in names)


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes[0], sizes[-1]


def max_pool_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    _: Sequence[int],
    __: Sequence[int],
    ___: Sequence[int],
    ____: Sequence[int],
    _____: bool,
    places: fx.Node,
) -> Value:
    """Every ∂y goes to the place its maximum came from.  ONNX counts those places through the whole tensor."""
    shape = shape_of(node)
    zeros = t.graph.call("ConstantOfShape", t.graph.integers(int(np.prod(shape))))
    flat = (t.graph.reshape(t.full(places), -1), t.graph.reshape(t.full(dy), -1))
    scattered = t.graph.call("ScatterElements", zeros, *flat, reduction="add")
    return Value(t.graph.reshape(scattered, *shape), shape_of(x))
