"""The operators of `ondevice/native` as torch sees them while it exports: their signatures.

There are no numbers here, only shapes (`shapes.py`): torch never runs them, and the mathematics stays in the traced ATen
graph (what to compute) and in the kernels (how).  Names and order of the arguments are those of
`ondevice/native/operators/*.cpp`: `tests/native/test_declarations.py` compares them.

Activations are planes [C, B, H, W]; a *value* is the five arguments `x, moments?, gamma?, beta?, activation`, meaning
activation(GroupNorm(x)), computed by whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from export.executorch import grid_shapes, row_shapes
from export.executorch import shapes as shapes_of

_LIBRARY = torch.library.Library("fedss", "DEF")
_VALUE = "Tensor x, Tensor? moments, Tensor? gamma, Tensor? beta, int activation"


def _operator(
    name: str, arguments: str, shapes: Callable[..., Tensor | tuple[Tensor, ...]], outputs: int = 1
) -> None:
    """Declare `fedss::name` and the variant with outputs that ExecuTorch calls."""
    if outputs == 1:
        returns, out, out_returns = "Tensor", "Tensor(a!) out", "Tensor(a!)"
    else:
        marks = "abc"[:outputs]
        returns = f"({', '.join('Tensor' for _ in marks)})"
        out = ", ".join(f"Tensor({mark}!) out{i}" for i, mark in enumerate(marks))
        out_returns = f"({', '.join(f'Tensor({mark}!)' for mark in marks)})"
    _LIBRARY.define(f"{name}({arguments}) -> {returns}")
    _LIBRARY.define(f"{name}.out({arguments}, *, {out}) -> {out_returns}")
    _LIBRARY.impl(name, shapes, "Meta")


_operator(
    "product", "Tensor a, Tensor b, bool transpose_a, bool transpose_b, Tensor? start", shapes_of.product
)
_operator("pointwise", "Tensor x, Tensor weight, Tensor? bias", shapes_of.pointwise)
_operator(
    "pointwise_input_gradient",
    "Tensor gradient, Tensor weight, Tensor? start",
    shapes_of.pointwise_input_gradient,
)
_operator("pointwise_weight_gradient", "Tensor gradient, Tensor x", shapes_of.pointwise_weight_gradient)
_operator(
    "pointwise_value", f"{_VALUE}, Tensor? gate, Tensor weight, Tensor? bias", shapes_of.pointwise_value
)
_operator(
    "pointwise_value_weight_gradient",
    f"Tensor gradient, {_VALUE}, Tensor? gate",
    shapes_of.pointwise_value_weight_gradient,
)
_operator(
    "convolution",
    "Tensor x, Tensor weight, Tensor? bias, int stride, int padding, bool batch_first",
    shapes_of.convolution,
)
_operator(
    "convolution_input_gradient",
    "Tensor gradient, Tensor weight, int stride, int padding, int height, int width",
    shapes_of.convolution_input_gradient,
)
_operator(
    "convolution_weight_gradient",
    "Tensor gradient, Tensor x, int kernel, int stride, int padding, bool batch_first",
    shapes_of.convolution_weight_gradient,
)
_operator("depthwise", f"{_VALUE}, Tensor weight, int stride", shapes_of.depthwise)
_operator(
    "depthwise_input_gradient",
    "Tensor gradient, Tensor weight, int stride, int height, int width",
    shapes_of.depthwise_input_gradient,
)
_operator(
    "depthwise_weight_gradient",
    f"Tensor gradient, {_VALUE}, int kernel, int stride",
    shapes_of.depthwise_weight_gradient,
)
_operator("group_moments", "Tensor x, int groups, float epsilon", shapes_of.group_moments)
_operator(
    "group_norm_gradient",
    f"Tensor? planes, Tensor? scale, Tensor? shift, {_VALUE}",
    shapes_of.group_norm_gradient,
    outputs=3,
)
_operator("materialise", f"{_VALUE}, Tensor? gate, Tensor? residual", shapes_of.materialise)
_operator("pooled_mean", _VALUE, shapes_of.pooled_mean)
_operator("pooled_product", f"Tensor gradient, {_VALUE}", shapes_of.pooled_product)
_operator("channel_sums", "Tensor x", shapes_of.channel_sums)
_operator("pixels", "Tensor images, Tensor scale, Tensor shift", shapes_of.pixels)
_operator("activate", "Tensor x, int activation", shapes_of.activate)
_operator("activation_gradient", "Tensor gradient, Tensor x, int activation", shapes_of.activation_gradient)
_operator("max_pool", "Tensor x, int kernel, int stride, int padding", shapes_of.max_pool)
_operator(
    "max_pool_gradient",
    "Tensor gradient, Tensor x, int kernel, int stride, int padding",
    shapes_of.max_pool_gradient,
)

# BatchNorm with frozen statistics.
_operator(
    "frozen_moments", "Tensor mean, Tensor variance, int batch, float epsilon", shapes_of.frozen_moments
)
_operator(
    "frozen_norm_gradient",
    f"Tensor? planes, Tensor? scale, Tensor? shift, {_VALUE}",
    shapes_of.group_norm_gradient,
    outputs=3,
)

# Windows with sizes of their own in height and in width.
_STEPS = "int[] stride, int[] padding, int[] dilation"
_operator(
    "grid_convolution",
    f"Tensor x, Tensor weight, Tensor? bias, {_STEPS}, int groups",
    grid_shapes.grid_convolution,
)
_operator(
    "grid_convolution_input_gradient",
    f"Tensor gradient, Tensor weight, {_STEPS}, int groups, int height, int width",
    grid_shapes.grid_convolution_input_gradient,
)
_operator(
    "grid_convolution_weight_gradient",
    f"Tensor gradient, Tensor x, int[] kernel, {_STEPS}, int groups",
    grid_shapes.grid_convolution_weight_gradient,
)
_operator(
    "grid_max_pool", f"Tensor x, int[] kernel, {_STEPS}, int height, int width", grid_shapes.grid_max_pool
)
_operator(
    "grid_max_pool_gradient",
    f"Tensor gradient, Tensor x, int[] kernel, {_STEPS}",
    grid_shapes.grid_max_pool_gradient,
)
_AVERAGE = "int[] kernel, int[] stride, int[] padding, int divisor, bool count_padding, int height, int width"
_operator("average_pool", f"Tensor x, {_AVERAGE}", grid_shapes.average_pool)
_operator("average_pool_gradient", f"Tensor gradient, {_AVERAGE}", grid_shapes.average_pool_gradient)

# Tensors in torch's own layout.
_operator(
    "layer_norm",
    "Tensor x, int columns, Tensor? gamma, Tensor? beta, float epsilon",
    row_shapes.layer_norm,
    outputs=3,
)
_operator(
    "layer_norm_gradient",
    "Tensor gradient, Tensor x, int columns, Tensor mean, Tensor inverse_deviation, Tensor? gamma",
    row_shapes.layer_norm_gradient,
    outputs=3,
)
_operator("softmax", "Tensor x, int columns", row_shapes.softmax)
_operator("softmax_gradient", "Tensor gradient, Tensor y, int columns", row_shapes.softmax_gradient)
_operator(
    "embedding_gradient",
    "Tensor gradient, Tensor ids, SymInt rows, int padding",
    row_shapes.embedding_gradient,
)
_operator(
    "batched_product", "Tensor a, Tensor b, bool transpose_a, bool transpose_b", row_shapes.batched_product
)
_operator("permute", "Tensor x, int[] order", row_shapes.permute)
