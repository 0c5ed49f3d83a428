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
