"""Which operators of `ondevice/native` an ATen operator becomes: the rules, and the table of them.

A rule takes the rewrite and what it knows of the node's arguments: a node, or a formula over planes that it may hand on.  A
new operator is a function with a line in `RULES`; one that touches no planes needs nothing.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from export.lower_executorch_convolution import convolution, convolution_backward
from export.lower_executorch_formulas import (
    ON_PLANES,
    Gated,
    GradientTimesValue,
    PerPlane,
    PlaneGradient,
    Planes,
    ThroughActivation,
    Transposed,
    Value,
)
from export.lower_executorch_graph import Rewrite, Rule, shape_of
from export.lower_executorch_operators import Activation

aten = torch.ops.aten
fedss = torch.ops.fedss


def rewrite(traced: fx.GraphModule) -> fx.GraphModule:
    """The same program in operators of ours; placeholders, outputs and their order stay."""
    return Rewrite(traced, RULES).run()


# GroupNorm and activations.


def group_norm(
    r: Rewrite,
    x: Any,
    gamma: Any,
    beta: Any,
    _batch: int,
    _channels: int,
    _plane: int,
    groups: int,
    epsilon: float,
) -> tuple[Value, Value, Value]:
    planes = r.planes(x)
    moments = r.emit(fedss.group_moments.default, planes, groups, epsilon)
    value = Value(planes, moments, gamma, beta)
    return (
        value,
        value,
        value,
    )  # whoever reads mean and deviation, the backward pass, finds the value by them


def group_norm_backward(
    r: Rewrite, gradient: Any, _x: Any, value: Value, *_rest: Any
) -> tuple[Planes, fx.Node, fx.Node]:
    if isinstance(gradient, ThroughActivation):
        if replace(gradient.value, activation=Activation.NONE) != value:
            r.refuse("after the activation of another GroupNorm")
        value, gradient = gradient.value, gradient.gradient
    else:
        gradient = r.gradient(gradient)
    node = r.emit(
        fedss.group_norm_gradient.default,
        gradient.planes,
        gradient.scale,
        gradient.shift,
        *value.arguments(),
    )
    outputs = [r.emit(operator.getitem, node, i) for i in range(3)]
    return Planes(outputs[0]), outputs[1], outputs[2]


def _activation(r: Rewrite, x: Any, activation: Activation) -> Any:
    if isinstance(x, Value) and x.activation is Activation.NONE:
        return replace(x, activation=activation)
    if isinstance(x, ON_PLANES):
        return Planes(r.emit(fedss.activate.default, r.planes(x), int(activation)))
    return r.emit(fedss.activate.default, r.plain(x), int(activation))


def _activation_backward(r: Rewrite, gradient: Any, x: Any, activation: Activation) -> Any:
    """`x` is the activation's input, or its output where that tells as much (ReLU)."""
    if isinstance(x, Value) and x.activation in (Activation.NONE, activation):
        return ThroughActivation(r.gradient(gradient), replace(x, activation=activation))
    if isinstance(x, ON_PLANES):
        arguments = (r.planes(gradient), r.planes(x), int(activation))
        return Planes(r.emit(fedss.activation_gradient.default, *arguments))
    return r.emit(fedss.activation_gradient.default, r.plain(gradient), r.plain(x), int(activation))


def threshold_backward(r: Rewrite, gradient: Any, output: Any, threshold: float) -> Any:
    if threshold != 0:
        r.refuse(f"with threshold {threshold}")
    return _activation_backward(r, gradient, output, Activation.RELU)


# Pooling, squeeze-and-excite, shortcuts.


def mean(r: Rewrite, x: Any, dims: Any, keepdim: bool = False) -> Any:
    if not isinstance(x, (Planes, Value)):
        return NotImplemented
    if sorted(dim % 4 for dim in dims) != [2, 3]:
        r.refuse(f"over dimensions {dims}")
    pooled = r.emit(fedss.pooled_mean.default, *r.value_arguments(x))
    return PerPlane(pooled) if keepdim else pooled


def multiply(_: Rewrite, a: Any, b: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        match one, other:
            case Value(), PerPlane():
                return Gated(one, other.vector)
            case Planes(), PerPlane():
                return PlaneGradient(one.node, scale=other.vector)
            case Planes(), Value():
                return GradientTimesValue(one.node, other)
    return NotImplemented


def sum_over(r: Rewrite, x: Any, dims: Any, keepdim: bool = False) -> Any:
    if not isinstance(x, GradientTimesValue):
        return NotImplemented
    summed = {dim % 4 for dim in dims}
    if keepdim:  # torch leaves out dimensions of one element
        summed |= {dim for dim in (2, 3) if shape_of(r.at.args[0])[dim] == 1}
    if summed != {2, 3}:
        r.refuse(f"over dimensions {dims}")
    pooled = r.emit(fedss.pooled_product.default, x.planes, *x.value.arguments())
    return PerPlane(pooled) if keepdim else pooled


def add(r: Rewrite, a: Any, b: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        match one, other:
            case PlaneGradient(shift=None), PerPlane():
                return replace(one, shift=other.vector)
            case Value(), Planes() | Value() | Gated():
                if one is b and isinstance(a, Value):
                    continue  # of two values the left one, the shortcut, is the one that others read too
                residual = r.planes(other)
                return Planes(r.emit(fedss.materialise.default, *one.arguments(), None, residual))
    if isinstance(a, Planes) and isinstance(b, Planes):
        return Planes(_add_planes(r, a.node, b.node))
    if isinstance(a, ON_PLANES) or isinstance(b, ON_PLANES):
        return Planes(r.emit(aten.add.Tensor, r.planes(a), r.planes(b)))
    return NotImplemented


def _add_planes(r: Rewrite, a: fx.Node, b: fx.Node) -> fx.Node:
    """A gradient that joins another one: the product that makes it starts from the other instead of from 0."""
    for product, other in ((a, b), (b, a)):
        if (
            r.is_newest(product)
            and product.target is fedss.pointwise_input_gradient.default
            and product.args[2] is None
        ):
            product.args = (*product.args[:2], other)
            return product
    return r.emit(aten.add.Tensor, a, b)


def unsqueeze(r: Rewrite, x: Any, dim: int) -> Any:
    rank = r.at.meta["val"].dim()
    if isinstance(x, PerPlane) or (isinstance(x, fx.Node) and rank == 3 and dim in (2, -1)):
        return PerPlane(x.vector if isinstance(x, PerPlane) else x)
    return NotImplemented


def squeeze(r: Rewrite, x: Any, _dim: int) -> Any:
    if isinstance(x, GradientTimesValue):  # planes of one element: torch left out the sum over them
        x = sum_over(r, x, [2, 3], keepdim=True)
    if not isinstance(x, PerPlane):
        return NotImplemented
    return x.vector if r.at.meta["val"].dim() == 2 else x


def expand(_: Rewrite, x: Any, _sizes: Any) -> Any:
    return x if isinstance(x, PerPlane) else NotImplemented


def divide(r: Rewrite, x: Any, by: float) -> Any:
    if not isinstance(x, PerPlane):
        return NotImplemented
    return PerPlane(r.emit(aten.mul.Scalar, x.vector, 1.0 / by))


def max_pool(
    r: Rewrite,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    ceil: bool = False,
) -> tuple[Planes, None]:
    window = _window(r, kernel, stride, padding, dilation, ceil)
    return Planes(r.emit(fedss.max_pool.default, r.planes(x), *window)), None


def max_pool_backward(
    r: Rewrite,
    gradient: Any,
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
    _indices: Any,
) -> Planes:
    window = _window(r, kernel, stride, padding, dilation, ceil)
    arguments = (r.planes(gradient), r.planes(x), *window)
    return Planes(r.emit(fedss.max_pool_gradient.default, *arguments))


def _window(
    r: Rewrite, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[int, int, int]:
    stride = stride or kernel
    if ceil or set(dilation) != {1} or any(len(set(sizes)) != 1 for sizes in (kernel, stride, padding)):
        r.refuse(
            f"with kernel {kernel}, stride {stride}, padding {padding}, dilation {dilation}, ceil {ceil}"
        )
    return kernel[0], stride[0], padding[0]


# Matrices and shapes.


def transpose(r: Rewrite, x: Any) -> Any:
    return x.node if isinstance(x, Transposed) else Transposed(r.plain(x))


def product(r: Rewrite, a: Any, b: Any, start: Any = None) -> fx.Node:
    flags = [isinstance(matrix, Transposed) for matrix in (a, b)]
    nodes: list[fx.Node] = [
        matrix.node if isinstance(matrix, Transposed) else r.plain(matrix) for matrix in (a, b)
    ]
    return r.emit(fedss.product.default, *nodes, *flags, start)


def view(r: Rewrite, x: Any, sizes: Any) -> Any:
    """Between planes and what torch flattens them to, the batch comes first."""
    if isinstance(x, ON_PLANES):
        turned = r.emit(aten.permute.default, r.planes(x), [1, 0, 2, 3])
        return r.emit(aten.view.default, r.contiguous(turned), sizes)
    if len(sizes) == 4:
        turned = r.emit(aten.permute.default, r.emit(aten.view.default, r.plain(x), sizes), [1, 0, 2, 3])
        return Planes(r.contiguous(turned))
    return NotImplemented


RULES: dict[Any, Rule] = {
    aten.detach.default: lambda _, x: x,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten.relu.default: lambda r, x: _activation(r, x, Activation.RELU),
    aten.hardswish.default: lambda r, x: _activation(r, x, Activation.HARDSWISH),
    aten.hardsigmoid.default: lambda r, x: _activation(r, x, Activation.HARDSIGMOID),
    aten.threshold_backward.default: threshold_backward,
    aten.hardswish_backward.default: lambda r, g, x: _activation_backward(r, g, x, Activation.HARDSWISH),
    aten.hardsigmoid_backward.default: lambda r, g, x: _activation_backward(r, g, x, Activation.HARDSIGMOID),
    aten.mean.dim: mean,
    aten.mul.Tensor: multiply,
    aten.sum.dim_IntList: sum_over,
    aten.add.Tensor: add,
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.dim: squeeze,
    aten.expand.default: expand,
    aten.div.Scalar: divide,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.t.default: transpose,
    aten.mm.default: product,
    aten.addmm.default: lambda r, start, a, b: product(r, a, b, start),
    aten.view.default: view,
}
