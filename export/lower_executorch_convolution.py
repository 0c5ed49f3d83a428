"""Convolutions and their gradients in the operators of `ondevice/native`: pointwise, depthwise, dense.

A pointwise (1x1) convolution is a matrix product of planes; a depthwise one reads the formula of its input; a dense one (the
stem, which takes the images as they lie) goes through a patch matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from export.lower_executorch_formulas import Planes
from export.lower_executorch_graph import Rewrite, shape_of

aten = torch.ops.aten
fedss = torch.ops.fedss


def convolution(
    r: Rewrite, x: Any, weight: fx.Node, bias: Any, stride: Any, padding: Any, *rest: Any
) -> Planes:
    match _kind(r, weight, stride, padding, *rest):
        case "pointwise" if x is not None and not isinstance(x, fx.Node):
            return Planes(r.emit(fedss.pointwise.default, r.planes(x), weight, bias))
        case "depthwise":
            node = r.emit(fedss.depthwise.default, *r.value_arguments(x), weight, stride[0])
            if bias is not None:
                per_channel = r.emit(aten.view.default, bias, [-1, 1, 1, 1])
                node = r.emit(aten.add.Tensor, node, per_channel)
            return Planes(node)
    image, batch_first = _dense_input(r, x)
    return Planes(r.emit(fedss.convolution.default, image, weight, bias, stride[0], padding[0], batch_first))


def convolution_backward(
    r: Rewrite, gradient: Any, x: Any, weight: fx.Node, _bias_size: Any, stride: Any, padding: Any, *rest: Any
) -> tuple[Any, Any, Any]:
    *geometry, (wants_x, wants_weight, wants_bias) = rest
    kind = _kind(r, weight, stride, padding, *geometry)
    if kind == "pointwise" and isinstance(x, fx.Node):
        kind = "dense"
    g = r.planes(gradient)
    x_gradient = weight_gradient = bias_gradient = None
    kernel = shape_of(r.at.args[2])[2]
    height, width = shape_of(r.at.args[1])[2:]
    # The weight's gradient first: the input that is recomputed for it is gone before the input's gradient comes.
    if wants_weight:
        if kind == "pointwise":
            weight_gradient = r.emit(fedss.pointwise_weight_gradient.default, g, r.planes(x))
        elif kind == "depthwise":
            weight_gradient = r.emit(
                fedss.depthwise_weight_gradient.default, g, *r.value_arguments(x), kernel, stride[0]
            )
        else:
            image, batch_first = _dense_input(r, x)
            weight_gradient = r.emit(
                fedss.convolution_weight_gradient.default,
                g,
                image,
                kernel,
                stride[0],
                padding[0],
                batch_first,
            )
    if wants_bias:
        bias_gradient = r.emit(fedss.channel_sums.default, g)
    if wants_x:
        if kind == "pointwise":
            node = r.emit(fedss.pointwise_input_gradient.default, g, weight, None)
        elif kind == "depthwise":
            node = r.emit(fedss.depthwise_input_gradient.default, g, weight, stride[0], height, width)
        else:
            node = r.emit(
                fedss.convolution_input_gradient.default, g, weight, stride[0], padding[0], height, width
            )
        x_gradient = Planes(node)
    return x_gradient, weight_gradient, bias_gradient


def _kind(
    r: Rewrite,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    _out_padding: Any,
    groups: int,
) -> str:
    is_backward = r.at.target is aten.convolution_backward.default
    sizes = shape_of(r.at.args[2 if is_backward else 1])
    if len(sizes) != 4:
        r.refuse(f"in {len(sizes) - 2} dimensions; expected 2")
    out_channels, in_channels, height, width = sizes
    square = height == width and len(set(stride)) == len(set(padding)) == 1
    if transposed or set(dilation) != {1} or not square:
        r.refuse(f"with stride {stride}, padding {padding}, dilation {dilation}, transposed {transposed}")
    if groups == 1:
        return "pointwise" if (height, stride[0], padding[0]) == (1, 1, 0) else "dense"
    depthwise = groups == out_channels and in_channels == 1
    if not depthwise or height not in (3, 5) or stride[0] not in (1, 2) or padding[0] != height // 2:
        r.refuse(f"with {groups} groups, kernel {height}, stride {stride[0]}, padding {padding[0]}, {weight}")
    return "depthwise"


def _dense_input(r: Rewrite, x: Any) -> tuple[fx.Node, bool]:
    """The node to convolve, and whether it is the step's images, which lie as [B, C, H, W]."""
    return (x, True) if isinstance(x, fx.Node) else (r.planes(x), False)
