"""The operators of `ondevice/native` as torch sees them while it exports: their signatures and the shapes they put out.

There are no numbers here: torch never runs them, and the mathematics stays in the traced ATen graph (what to compute) and
in the kernels (how).  The order of arguments is that of `ondevice/native/*_operators.cpp`.

Activations are planes [C, B, H, W]; a *value* is the five arguments `x, moments?, gamma?, beta?, activation`, meaning
activation(GroupNorm(x)), computed by whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

_LIBRARY: Any = torch.library.Library("fedss", "DEF")  # type: ignore[no-untyped-call]
_VALUE = "Tensor x, Tensor? moments, Tensor? gamma, Tensor? beta, int activation"


class Activation(IntEnum):
    """As in `ondevice/native/kernels.h`."""

    NONE = 0
    RELU = 1
    HARDSWISH = 2
    HARDSIGMOID = 3


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


def _product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool, _start: Tensor | None) -> Tensor:
    return a.new_empty(a.shape[1 if transpose_a else 0], b.shape[0 if transpose_b else 1])


def _convolved(
    x: Tensor, channels: int, kernel: int, stride: int, padding: int, batch_first: bool = False
) -> Tensor:
    height, width = ((size + 2 * padding - kernel) // stride + 1 for size in x.shape[2:])
    return x.new_empty(channels, x.shape[0 if batch_first else 1], height, width)


def _convolution(
    x: Tensor, weight: Tensor, _bias: Tensor | None, stride: int, padding: int, batch_first: bool
) -> Tensor:
    return _convolved(x, weight.shape[0], weight.shape[2], stride, padding, batch_first)


def _convolution_weight_gradient(
    gradient: Tensor, x: Tensor, kernel: int, _stride: int, _padding: int, batch_first: bool
) -> Tensor:
    return gradient.new_empty(gradient.shape[0], x.shape[1 if batch_first else 0], kernel, kernel)


def _depthwise(x: Tensor, *rest: object) -> Tensor:
    weight, stride = rest[-2:]
    assert isinstance(weight, Tensor)
    assert isinstance(stride, int)
    return _convolved(x, x.shape[0], weight.shape[2], stride, weight.shape[2] // 2)


def _group_norm_gradient(
    _planes: Tensor | None, _scale: Tensor | None, _shift: Tensor | None, x: Tensor, *_rest: object
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[0]), x.new_empty(x.shape[0])


def _pooled(x: Tensor, *_rest: object) -> Tensor:
    return x.new_empty(x.shape[1], x.shape[0])


_operator("product", "Tensor a, Tensor b, bool transpose_a, bool transpose_b, Tensor? start", _product)
_operator(
    "pointwise",
    "Tensor x, Tensor weight, Tensor? bias",
    lambda x, weight, _bias: x.new_empty(weight.shape[0], *x.shape[1:]),
)
_operator(
    "pointwise_input_gradient",
    "Tensor gradient, Tensor weight, Tensor? start",
    lambda gradient, weight, _start: gradient.new_empty(weight.shape[1], *gradient.shape[1:]),
)
_operator(
    "pointwise_weight_gradient",
    "Tensor gradient, Tensor x",
    lambda gradient, x: x.new_empty(gradient.shape[0], x.shape[0], 1, 1),
)
_operator(
    "convolution",
    "Tensor x, Tensor weight, Tensor? bias, int stride, int padding, bool batch_first",
    _convolution,
)
_operator(
    "convolution_input_gradient",
    "Tensor gradient, Tensor weight, int stride, int padding, int height, int width",
    lambda gradient, weight, _stride, _padding, height, width: gradient.new_empty(
        weight.shape[1], gradient.shape[1], height, width
    ),
)
_operator(
    "convolution_weight_gradient",
    "Tensor gradient, Tensor x, int kernel, int stride, int padding, bool batch_first",
    _convolution_weight_gradient,
)
_operator("depthwise", f"{_VALUE}, Tensor weight, int stride", _depthwise)
_operator(
    "depthwise_input_gradient",
    "Tensor gradient, Tensor weight, int stride, int height, int width",
    lambda gradient, _weight, _stride, height, width: gradient.new_empty(*gradient.shape[:2], height, width),
)
_operator(
    "depthwise_weight_gradient",
    f"Tensor gradient, {_VALUE}, int kernel, int stride",
    lambda _gradient, x, *rest: x.new_empty(x.shape[0], 1, rest[-2], rest[-2]),
)
_operator(
    "group_moments",
    "Tensor x, int groups, float epsilon",
    lambda x, groups, _epsilon: x.new_empty(2, groups, x.shape[1]),
)
_operator(
    "group_norm_gradient",
    f"Tensor? planes, Tensor? scale, Tensor? shift, {_VALUE}",
    _group_norm_gradient,
    outputs=3,
)
_operator("materialise", f"{_VALUE}, Tensor? gate, Tensor? residual", lambda x, *_rest: torch.empty_like(x))
_operator("pooled_mean", _VALUE, _pooled)
_operator("pooled_product", f"Tensor gradient, {_VALUE}", lambda gradient, *_rest: _pooled(gradient))
_operator("channel_sums", "Tensor x", lambda x: x.new_empty(x.shape[0]))
_operator("activate", "Tensor x, int activation", lambda x, _activation: torch.empty_like(x))
_operator(
    "activation_gradient",
    "Tensor gradient, Tensor x, int activation",
    lambda _gradient, x, _activation: torch.empty_like(x),
)
_operator(
    "max_pool",
    "Tensor x, int kernel, int stride, int padding",
    lambda x, kernel, stride, padding: _convolved(x, x.shape[0], kernel, stride, padding),
)
_operator(
    "max_pool_gradient",
    "Tensor gradient, Tensor x, int kernel, int stride, int padding",
    lambda _gradient, x, *_window: torch.empty_like(x),
)
