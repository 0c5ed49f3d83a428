"""Convolutions and their gradients in the operators of `ondevice/native`: pointwise, depthwise, dense.

A pointwise (1x1) convolution is a matrix product of planes; a depthwise one reads the formula of its input; a dense one (the
stem, which takes the images as they lie) goes through a patch matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from export.executorch.formulas import Given, Planes, Shape
from export.executorch.rewrite import Rewrite, shape_of

aten = torch.ops.aten
fedss = torch.ops.fedss


@dataclass(frozen=True)
class Geometry:
    """What is left of a convolution's options once those without a kernel are refused."""

    kind: str
    kernel: int
    stride: int
    padding: int


def convolution(r: Rewrite, x: Given, weight: Given, bias: Given, *options: list[int]) -> Planes:
    geometry = _geometry(r, shape_of(r.at.args[1]), *options)
    weights = r.plain(weight)
    biases = None if bias is None else r.plain(bias)
    if geometry.kind == "pointwise" and not isinstance(x, fx.Node):
        return Planes(r.emit(fedss.pointwise.default, r.planes(x), weights, biases))
    if geometry.kind == "depthwise":
        node = r.emit(fedss.depthwise.default, *r.value_arguments(x), weights, geometry.stride)
        if biases is not None:
            per_channel = r.emit(aten.view.default, biases, [-1, 1, 1, 1])
            node = r.emit(aten.add.Tensor, node, per_channel)
        return Planes(node)
    image, batch_first = _dense_input(r, x)
    window = (geometry.stride, geometry.padding)
    return Planes(r.emit(fedss.convolution.default, image, weights, biases, *window, batch_first))


def convolution_backward(
    r: Rewrite, gradient: Given, x: Given, weight: Given, _bias_size: Given, *options: list[int]
) -> tuple[Planes | None, fx.Node | None, fx.Node | None]:
    *geometry_options, (wants_x, wants_weight, wants_bias) = options
    geometry = _geometry(r, shape_of(r.at.args[2]), *geometry_options)
    kind, kernel, stride, padding = geometry.kind, geometry.kernel, geometry.stride, geometry.padding
    if kind == "pointwise" and isinstance(x, fx.Node):
        kind = "dense"
    g, weights = r.planes(gradient), r.plain(weight)
    x_gradient = weight_gradient = bias_gradient = None
    height, width = shape_of(r.at.args[1])[2:]
    # The weight's gradient first: the input that is recomputed for it is gone before the input's gradient comes.
    if wants_weight:
        if kind == "pointwise":
            weight_gradient = r.emit(fedss.pointwise_weight_gradient.default, g, r.planes(x))
        elif kind == "depthwise":
            arguments = (g, *r.value_arguments(x), kernel, stride)
            weight_gradient = r.emit(fedss.depthwise_weight_gradient.default, *arguments)
        else:
            image, batch_first = _dense_input(r, x)
            window = (kernel, stride, padding, batch_first)
            weight_gradient = r.emit(fedss.convolution_weight_gradient.default, g, image, *window)
    if wants_bias:
        bias_gradient = r.emit(fedss.channel_sums.default, g)
    if wants_x:
        if kind == "pointwise":
            node = r.emit(fedss.pointwise_input_gradient.default, g, weights, None)
        elif kind == "depthwise":
            node = r.emit(fedss.depthwise_input_gradient.default, g, weights, stride, height, width)
        else:
            sizes = (stride, padding, height, width)
            node = r.emit(fedss.convolution_input_gradient.default, g, weights, *sizes)
        x_gradient = Planes(node)
    return x_gradient, weight_gradient, bias_gradient


def _geometry(
    r: Rewrite,
    weight: Shape,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    *rest: object,
) -> Geometry:
    transposed, _out_padding, groups = rest
    if len(weight) != 4:
        r.refuse(f"in {len(weight) - 2} dimensions; expected 2")
    out_channels, in_channels, height, width = weight
    square = height == width and len(set(stride)) == len(set(padding)) == 1
    if transposed or set(dilation) != {1} or not square:
        r.refuse(f"with stride {stride}, padding {padding}, dilation {dilation}, transposed {transposed}")
    if groups == 1:
        pointwise = (height, stride[0], padding[0]) == (1, 1, 0)
        return Geometry("pointwise" if pointwise else "dense", height, stride[0], padding[0])
    depthwise = groups == out_channels and in_channels == 1
    if not depthwise or height not in (3, 5) or stride[0] not in (1, 2) or padding[0] != height // 2:
        sizes = f"kernel {height}, stride {stride[0]}, padding {padding[0]}"
        r.refuse(f"with {groups} groups, {sizes}, weight {list(weight)}")
    return Geometry("depthwise", height, stride[0], padding[0])


def _dense_input(r: Rewrite, x: Given) -> tuple[fx.Node, bool]:
    """The node to convolve, and whether it is the step's images, which lie as [B, C, H, W]."""
    return (x, True) if isinstance(x, fx.Node) else (r.planes(x), False)
