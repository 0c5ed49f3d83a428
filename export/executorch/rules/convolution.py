"""Convolutions and their gradients in the operators of `ondevice/native`: pointwise, depthwise, dense, and any other.

A pointwise (1x1) convolution is a matrix product of planes, or of an activated formula that it computes while it packs them.
A depthwise one of the common sizes reads the formula of its input; a dense one (the stem, which takes the images as they
lie) goes through a patch matrix.  What is grouped, dilated, oblong or large goes to the operators that take any window.
Over sequences they are images of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from export.executorch.formulas import Activation, Gated, Given, Known, Planes, Shape, Value, ValueArguments
from export.executorch.rewrite import Rewrite, shape_of

aten = torch.ops.aten
fedss = torch.ops.fedss
Pairs = tuple[list[int], list[int], list[int]]
"""Stride, padding and dilation, each in height and in width."""

MOST_MADE = 256
"""Channels that a pointwise convolution of a formula makes: on ARM64 its input is packed anew for every 128 of them."""
LEAST_PIXELS = 64
"""Of its planes: small ones fill no panel, and their pieces cost more instructions than writing them out."""


@dataclass(frozen=True)
class Geometry:
    """What kind of convolution it is; kernel, stride and padding are those of a square window."""

    kind: str
    kernel: int
    stride: int
    padding: int
    steps: Pairs
    groups: int


def convolution(r: Rewrite, x: Given, weight: Given, bias: Given, *options: list[int]) -> Known:
    geometry = _geometry(r, shape_of(r.at.args[1]), *options)
    biases = None if bias is None else r.plain(bias)
    if len(shape_of(r.at)) == 3:
        planes = _planes_of_sequences(r, x, shape_of(r.at.args[0]))
        weights = _rows_of_one(r, weight, shape_of(r.at.args[1]))
        arguments = (planes, weights, biases, *geometry.steps, geometry.groups)
        return _sequences(r, r.emit(fedss.grid_convolution.default, *arguments), shape_of(r.at))
    weights = r.plain(weight)
    if geometry.kind == "pointwise" and not _is_image(x):
        if (gated := _gated_value(x, shape_of(r.at))) is not None:
            return Planes(r.emit(fedss.pointwise_value.default, *gated, weights, biases))
        return Planes(r.emit(fedss.pointwise.default, r.planes(x), weights, biases))
    if geometry.kind == "depthwise":
        node = r.emit(fedss.depthwise.default, *r.value_arguments(x), weights, geometry.stride)
        if biases is not None:
            per_channel = r.emit(aten.view.default, biases, [-1, 1, 1, 1])
            node = r.emit(aten.add.Tensor, node, per_channel)
        return Planes(node)
    if geometry.kind == "any":
        arguments = (r.planes(x), weights, biases, *geometry.steps, geometry.groups)
        return Planes(r.emit(fedss.grid_convolution.default, *arguments))
    image, batch_first = _dense_input(r, x)
    window = (geometry.stride, geometry.padding)
    return Planes(r.emit(fedss.convolution.default, image, weights, biases, *window, batch_first))


def convolution_backward(
    r: Rewrite, gradient: Given, x: Given, weight: Given, _bias_size: Given, *options: list[int]
) -> tuple[Known | None, fx.Node | None, fx.Node | None]:
    *geometry_options, (wants_x, wants_weight, wants_bias) = options
    geometry = _geometry(r, shape_of(r.at.args[2]), *geometry_options)
    if len(shape_of(r.at.args[1])) == 3:
        return _sequence_backward(r, gradient, x, weight, geometry, (wants_x, wants_weight, wants_bias))
    kind, kernel, stride, padding = geometry.kind, geometry.kernel, geometry.stride, geometry.padding
    if kind == "pointwise" and _is_image(x):
        kind = "dense"
    g, weights = r.planes(gradient), r.plain(weight)
    x_gradient = weight_gradient = bias_gradient = None
    height, width = shape_of(r.at.args[1])[2:]
    # The weight's gradient first: the input that is recomputed for it is gone before the input's gradient comes.
    if wants_weight:
        if kind == "pointwise" and (gated := _gated_value(x, shape_of(r.at.args[0]))) is not None:
            weight_gradient = r.emit(fedss.pointwise_value_weight_gradient.default, g, *gated)
        elif kind == "pointwise":
            weight_gradient = r.emit(fedss.pointwise_weight_gradient.default, g, r.planes(x))
        elif kind == "depthwise":
            arguments = (g, *r.value_arguments(x), kernel, stride)
            weight_gradient = r.emit(fedss.depthwise_weight_gradient.default, *arguments)
        elif kind == "any":
            sizes = (list(shape_of(r.at.args[2])[2:]), *geometry.steps, geometry.groups)
            weight_gradient = r.emit(fedss.grid_convolution_weight_gradient.default, g, r.planes(x), *sizes)
        else:
            image, batch_first = _dense_input(r, x)
            window = (kernel, stride, padding, batch_first)
            weight_gradient = r.emit(fedss.convolution_weight_gradient.default, g, image, *window)
        weight_gradient.meta["val"] = r.at.meta["val"][1]
    if wants_bias:
        bias_gradient = r.emit(fedss.channel_sums.default, g)
    if wants_x:
        if kind == "pointwise":
            node = r.emit(fedss.pointwise_input_gradient.default, g, weights, None)
        elif kind == "depthwise":
            node = r.emit(fedss.depthwise_input_gradient.default, g, weights, stride, height, width)
        elif kind == "any":
            steps = (*geometry.steps, geometry.groups, height, width)
            node = r.emit(fedss.grid_convolution_input_gradient.default, g, weights, *steps)
        else:
            sizes_of_x = (stride, padding, height, width)
            node = r.emit(fedss.convolution_input_gradient.default, g, weights, *sizes_of_x)
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
    if len(weight) not in (3, 4):
        r.refuse(f"in {len(weight) - 2} dimensions; expected 1 or 2")
    if transposed:
        r.refuse("transposed")
    assert isinstance(groups, int)
    steps = _in_two_dimensions(stride, padding, dilation)
    out_channels, in_channels, *window = weight
    kernel = window[-1]
    common = (kernel, steps[0][1], steps[1][1], steps, groups)
    square = len(set(window)) == 1 and all(len(set(pair)) == 1 for pair in steps)
    if len(weight) == 3 or not square or set(dilation) != {1}:
        return Geometry("any", *common)
    if groups == 1:
        pointwise = (kernel, stride[0], padding[0]) == (1, 1, 0)
        return Geometry("pointwise" if pointwise else "dense", *common)
    depthwise = groups == out_channels and in_channels == 1
    if depthwise and kernel in (3, 5) and stride[0] in (1, 2) and padding[0] == kernel // 2:
        return Geometry("depthwise", *common)
    return Geometry("any", *common)


def _in_two_dimensions(stride: list[int], padding: list[int], dilation: list[int]) -> Pairs:
    if len(stride) == 2:
        return list(stride), list(padding), list(dilation)
    return [1, stride[0]], [0, padding[0]], [1, dilation[0]]


def _gated_value(x: Given, made: Shape) -> tuple[*ValueArguments, fx.Node | None] | None:
    """The formula as a pointwise convolution that makes planes of this shape reads it.

    What is not activated is the output of a block, small, and mostly written out for the next block's sum anyway.
    """
    _batch, channels, height, width = made
    if channels > MOST_MADE or height * width < LEAST_PIXELS:
        return None
    if isinstance(x, Gated):
        return *x.value.arguments(), x.gate
    if isinstance(x, Value) and x.activation is not Activation.NONE:
        return *x.arguments(), None
    return None


def _is_image(x: Given) -> bool:
    """Whether it lies as [B, C, H, W] and is read so: what is an input of the step, and not computed."""
    if not isinstance(x, fx.Node):
        return False
    return x.op in ("placeholder", "get_attr") or x.target is fedss.pixels.default


def _dense_input(r: Rewrite, x: Given) -> tuple[fx.Node, bool]:
    """The node to convolve, and whether it lies as [B, C, H, W], as the step's images do."""
    return (x, True) if isinstance(x, fx.Node) else (r.planes(x), False)


# Sequences [B, C, L].


def _planes_of_sequences(r: Rewrite, x: Given, shape: Shape) -> fx.Node:
    batch, channels, length = shape
    turned = r.emit(fedss.permute.default, r.plain(x), [1, 0, 2])
    return r.emit(aten.reshape.default, turned, [channels, batch, 1, length])


def _sequences(r: Rewrite, planes: fx.Node, shape: Shape) -> fx.Node:
    batch, channels, length = shape
    rows = r.emit(aten.reshape.default, planes, [channels, batch, length])
    return r.emit(fedss.permute.default, rows, [1, 0, 2])


def _rows_of_one(r: Rewrite, weight: Given, shape: Shape) -> fx.Node:
    made, channels, taps = shape
    return r.emit(aten.reshape.default, r.plain(weight), [made, channels, 1, taps])


def _sequence_backward(
    r: Rewrite, gradient: Given, x: Given, weight: Given, geometry: Geometry, wanted: tuple[int, ...]
) -> tuple[fx.Node | None, fx.Node | None, fx.Node | None]:
    wants_x, wants_weight, wants_bias = wanted
    of_gradient, of_x, of_weight = (shape_of(argument) for argument in r.at.args[:3])
    g = _planes_of_sequences(r, gradient, of_gradient)
    x_gradient = weight_gradient = bias_gradient = None
    if wants_weight:
        sizes = ([1, of_weight[2]], *geometry.steps, geometry.groups)
        planes = _planes_of_sequences(r, x, of_x)
        made = r.emit(fedss.grid_convolution_weight_gradient.default, g, planes, *sizes)
        weight_gradient = r.emit(aten.reshape.default, made, list(of_weight))
    if wants_bias:
        bias_gradient = r.emit(fedss.channel_sums.default, g)
    if wants_x:
        steps = (*geometry.steps, geometry.groups, 1, of_x[2])
        weights = _rows_of_one(r, weight, of_weight)
        node = r.emit(fedss.grid_convolution_input_gradient.default, g, weights, *steps)
        x_gradient = _sequences(r, node, of_x)
        x_gradient.meta["val"] = r.at.meta["val"][0]
    return x_gradient, weight_gradient, bias_gradient
