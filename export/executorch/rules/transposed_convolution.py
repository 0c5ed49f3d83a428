"""Transposed convolutions: the gradients of a convolution in the other direction.

Its forward pass is that one's gradient of the input, its gradient of the input that one's forward pass, and the gradient of
the weight is the same with input and output exchanged.
"""

from __future__ import annotations

import torch
from torch import fx

from export.executorch.formulas import Given, Known
from export.executorch.rewrite import Rewrite, shape_of
from export.executorch.rules.sequences import (
    as_traced,
    in_two_dimensions,
    planes_of,
    weight_as_traced,
    windows_of,
)

aten = torch.ops.aten
fedss = torch.ops.fedss


def transposed_convolution(
    r: Rewrite, x: Given, weight: Given, bias: Given, steps: tuple[list[int], ...], groups: int
) -> Known:
    of_x, of_weight = (shape_of(argument) for argument in r.at.args[:2])
    made = shape_of(r.at)
    planes, windows = planes_of(r, x, of_x), windows_of(r, weight, of_weight)
    sizes = in_two_dimensions(made[2:], 1)
    node = r.emit(fedss.grid_convolution_input_gradient.default, planes, windows, *steps, groups, *sizes)
    if bias is not None:
        node = r.emit(aten.add.Tensor, node, r.emit(aten.view.default, r.plain(bias), [-1, 1, 1, 1]))
    return as_traced(r, node, made)


def transposed_convolution_backward(
    r: Rewrite,
    gradient: Given,
    x: Given,
    weight: Given,
    steps: tuple[list[int], ...],
    groups: int,
    *,
    wanted: list[int],
) -> tuple[Known | None, fx.Node | None, fx.Node | None]:
    wants_x, wants_weight, wants_bias = wanted
    of_gradient, of_x, of_weight = (shape_of(argument) for argument in r.at.args[:3])
    g = planes_of(r, gradient, of_gradient)
    x_gradient = weight_gradient = bias_gradient = None
    if wants_weight:
        window, planes = in_two_dimensions(of_weight[2:], 1), planes_of(r, x, of_x)
        made = r.emit(fedss.grid_convolution_weight_gradient.default, planes, g, window, *steps, groups)
        weight_gradient = weight_as_traced(r, made, of_weight)
        weight_gradient.meta["val"] = r.at.meta["val"][1]
    if wants_bias:
        bias_gradient = r.emit(fedss.channel_sums.default, g)
    if wants_x:
        windows = windows_of(r, weight, of_weight)
        node = r.emit(fedss.grid_convolution.default, g, windows, None, *steps, groups)
        x_gradient = as_traced(r, node, of_x)
        if isinstance(x_gradient, fx.Node):
            x_gradient.meta["val"] = r.at.meta["val"][0]
    return x_gradient, weight_gradient, bias_gradient
