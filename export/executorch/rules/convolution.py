"""Convolutions and their gradients in the operators of `ondevice/native`: pointwise, depthwise, dense, and any other.

A pointwise (1x1) convolution is a matrix product of planes, or of an activated formula that it computes while it packs them.
A depthwise one of the common sizes reads the formula of its input; a dense one (the stem, which takes the images as they
lie) goes through a patch matrix.  What is grouped, dilated, oblong or large goes to the operators that take any window, and
so does what makes a few pixels: they read the weight once for several images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from export.executorch.formulas import Activation, Gated, Given, Known, Planes, Shape, Value, ValueArguments
from export.executorch.rewrite import Rewrite, shape_of
from export.executorch.rules.sequences import (
    as_traced,
    in_two_dimensions,
    planes_of,
    weight_as_traced,
    windows_of,
)
from export.executorch.rules.transposed_convolution import (
    transposed_convolution,
    transposed_convolution_backward,
)

aten = torch.ops.aten
fedss = torch.ops.fedss
Pairs = tuple[list[int], list[int], list[int]]
"""Stride, padding and dilation, each in height and in width."""

MOST_MADE = 256
"""Channels that a pointwise convolution of a formula makes: on ARM64 its input is packed anew for every 128 of them."""
LEAST_PIXELS = 64
"""Of its planes: small ones fill no panel, and their pieces cost more instructions than writing them out."""
FEW_PIXELS = 64
"""That a dense convolution makes of an image: a product with so few columns reads the weight for little."""


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
    steps, made = geometry.steps, shape_of(r.at)
    if geometry.kind == "transposed":
        return transposed_convolution(r, x, weight, bias, steps, geometry.groups)
    biases, kind = None if bias is None else r.plain(bias), _kind(geometry, x, made)
    if kind == "any":
        planes, windows = (
            planes_of(r, x, shape_of(r.at.args[0])),
            windows_of(r, weight, shape_of(r.at.args[1])),
        )
        arguments = (planes, windows, biases, *steps, geometry.groups)
        return as_traced(r, r.emit(fedss.grid_convolution.default, *arguments), made)
    weights = r.plain(weight)
    if kind == "pointwise":
        if (gated := _gated_value(x, made)) is not None:
            return Planes(r.emit(fedss.pointwise_value.default, *gated, weights, biases))
        return Planes(r.emit(fedss.pointwise.default, r.planes(x), weights, biases))
    if kind == "depthwise":
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
) -> tuple[Known | None, fx.Node | None, fx.Node | None]:
    *geometry_options, wanted = options
    of_gradient, of_x, of_weight = (shape_of(argument) for argument in r.at.args[:3])
    geometry = _geometry(r, of_weight, *geometry_options)
    steps, groups = geometry.steps, geometry.groups
    if geometry.kind == "transposed":
        return transposed_convolution_backward(r, gradient, x, weight, steps, groups, wanted=wanted)
    wants_x, wants_weight, wants_bias = wanted
    kind, kernel, stride, padding = (
        _kind(geometry, x, of_gradient),
        geometry.kernel,
        geometry.stride,
        geometry.padding,
    )
    g, weights = planes_of(r, gradient, of_gradient), windows_of(r, weight, of_weight)
    x_gradient = weight_gradient = bias_gradient = None
    height, width = in_two_dimensions(of_x[2:], 1)
    # The weight's gradient first: the input that is recomputed for it is gone before the input's gradient comes.
    if wants_weight:
        if kind == "pointwise" and (gated := _gated_value(x, of_gradient)) is not None:
            weight_gradient = r.emit(fedss.pointwise_value_weight_gradient.default, g, *gated)
        elif kind == "pointwise":
            weight_gradient = r.emit(fedss.pointwise_weight_gradient.default, g, r.planes(x))
        elif kind == "depthwise":
            arguments = (g, *r.value_arguments(x), kernel, stride)
            weight_gradient = r.emit(fedss.depthwise_weight_gradient.default, *arguments)
        elif kind == "any":
            sizes = (in_two_dimensions(of_weight[2:], 1), *steps, groups)
            planes = planes_of(r, x, of_x)
            made = r.emit(fedss.grid_convolution_weight_gradient.default, g, planes, *sizes)
            weight_gradient = weight_as_traced(r, made, of_weight)
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
            sizes_of_any = (*steps, groups, height, width)
            node = r.emit(fedss.grid_convolution_input_gradient.default, g, weights, *sizes_of_any)
        else:
            sizes_of_x = (stride, padding, height, width)
            node = r.emit(fedss.convolution_input_gradient.default, g, weights, *sizes_of_x)
        x_gradient = as_traced(r, node, of_x)
        if isinstance(x_gradient, fx.Node):
            x_gradient.meta["val"] = r.at.meta["val"][0]
    return x_gradient, weight_gradient, bias_gradient


def _kind(geometry: Geometry, x: Given, made: Shape) -> str:
    """How this input is convolved: over images as they lie pointwise is dense, and over few pixels dense is any window."""
    if geometry.kind == "pointwise" and _is_image(x):
        return "dense"
    few = geometry.kind == "dense" and made[2] * made[3] <= FEW_PIXELS
    return "any" if few and not isinstance(x, fx.Node) else geometry.kind


def _geometry(
    r: Rewrite,
    weight: Shape,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    *rest: object,
) -> Geometry:
    transposed, out_padding, groups = rest
    if len(weight) not in (3, 4):
        r.refuse(f"in {len(weight) - 2} dimensions; expected 1 or 2")
    assert isinstance(groups, int)
    assert isinstance(out_padding, (list, tuple))
    steps = (in_two_dimensions(stride, 1), in_two_dimensions(padding, 0), in_two_dimensions(dilation, 1))
    out_channels, in_channels, *window = weight
    kernel = window[-1]
    common = (kernel, steps[0][1], steps[1][1], steps, groups)
    if transposed:
        # Beyond a stride of padding the convolution in the other direction makes more pixels than there are.
        if any(more >= step for more, step in zip(out_padding, stride, strict=True)):
            r.refuse(f"transposed, with output_padding {list(out_padding)} and stride {list(stride)}")
        return Geometry("transposed", *common)
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
