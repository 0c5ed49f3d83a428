"""Which operators of `ondevice/native` an ATen operator becomes: the rules, and the table of them.

A rule takes the rewrite and what it knows of the node's arguments: a node, or a formula over planes that it may hand on.  A
new operator is a function with a line in `RULES`; one that touches no planes needs nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx
from torch.fx.node import Target

from export.executorch.formulas import (
    COPIED,
    ON_PLANES,
    Activation,
    Copied,
    Given,
    GradientTimesValue,
    Known,
    PerPlane,
    Planes,
    Shape,
    ThroughActivation,
    Transposed,
    Value,
)
from export.executorch.rewrite import Rewrite, Rule, shape_of
from export.executorch.rules.arithmetic import (
    add,
    divide,
    mean,
    multiply,
    multiply_by_number,
    sum_of_planes,
    sum_over,
)
from export.executorch.rules.convolution import convolution, convolution_backward

aten = torch.ops.aten
fedss = torch.ops.fedss


def rewrite(traced: fx.GraphModule) -> fx.GraphModule:
    """The same program in operators of ours; placeholders, outputs and their order stay."""
    return Rewrite(traced, RULES).run()


# GroupNorm and activations.


def group_norm(r: Rewrite, x: Given, gamma: Given, beta: Given, *rest: Given) -> tuple[Value, Value, Value]:
    *_sizes, groups, epsilon = rest
    if not isinstance(gamma, fx.Node) or not isinstance(beta, fx.Node):
        r.refuse("without weight or bias")
    assert isinstance(groups, int)
    assert isinstance(epsilon, float)
    planes = r.planes(x)
    moments = r.emit(fedss.group_moments.default, planes, groups, epsilon)
    value = Value(planes, moments, gamma, beta)
    # The backward pass reads mean and deviation, and finds the value by them.
    return value, value, value


def group_norm_backward(
    r: Rewrite, gradient: Given, _x: Given, value: Given, *_rest: Given
) -> tuple[Planes, fx.Node, fx.Node]:
    assert isinstance(value, Value)
    if isinstance(gradient, ThroughActivation) and _before(gradient.value) == value:
        value, parts = gradient.value, gradient.gradient
    else:
        parts = r.gradient(gradient, shape_of(r.at.args[0]))
    node = r.emit(
        fedss.group_norm_gradient.default, parts.planes, parts.scale, parts.shift, *value.arguments()
    )
    outputs = [r.emit(operator.getitem, node, i) for i in range(3)]
    return Planes(outputs[0]), outputs[1], outputs[2]


def _before(value: Value) -> Value:
    """What its activation reads."""
    return replace(value, activation=Activation.NONE)


def _activation(r: Rewrite, x: Given, activation: Activation) -> Known:
    if isinstance(x, Value) and x.activation is Activation.NONE:
        return replace(x, activation=activation)
    if isinstance(x, ON_PLANES):
        return Planes(r.emit(fedss.activate.default, r.planes(x), int(activation)))
    return r.emit(fedss.activate.default, r.plain(x), int(activation))


def _activation_backward(r: Rewrite, gradient: Given, x: Given, activation: Activation) -> Known:
    """`x` is the activation's input, or its output where that tells as much (ReLU)."""
    tells = {Activation.NONE, activation} if activation is Activation.RELU else {Activation.NONE}
    if isinstance(x, Value) and x.activation in tells:
        parts = r.gradient(gradient, shape_of(r.at.args[0]))
        return ThroughActivation(parts, replace(x, activation=activation))
    if isinstance(x, ON_PLANES) or isinstance(gradient, ON_PLANES):
        arguments = (r.planes(gradient), r.planes(x), int(activation))
        return Planes(r.emit(fedss.activation_gradient.default, *arguments))
    return r.emit(fedss.activation_gradient.default, r.plain(gradient), r.plain(x), int(activation))


def threshold_backward(r: Rewrite, gradient: Given, output: Given, threshold: float) -> Known:
    if threshold != 0:
        r.refuse(f"with threshold {threshold}")
    return _activation_backward(r, gradient, output, Activation.RELU)


# Pooling.


def max_pool(r: Rewrite, x: Given, kernel: list[int], *options: list[int]) -> tuple[Planes, None]:
    window = _window(r, kernel, options)
    pooled, _indices = r.at.meta["val"]
    _check_pooled(r, shape_of(r.at.args[0]), tuple(pooled.shape), window)
    return Planes(r.emit(fedss.max_pool.default, r.planes(x), *window)), None


def max_pool_backward(
    r: Rewrite, gradient: Given, x: Given, kernel: list[int], *options: list[int]
) -> Planes:
    window = _window(r, kernel, options)
    _check_pooled(r, shape_of(r.at.args[1]), shape_of(r.at.args[0]), window)
    arguments = (r.planes(gradient), r.planes(x), *window)
    return Planes(r.emit(fedss.max_pool_gradient.default, *arguments))


def _window(r: Rewrite, kernel: list[int], options: Sequence[list[int]]) -> tuple[int, int, int]:
    """Kernel, stride and padding."""
    stride, padding, dilation = (*options[:3], *([], [0, 0], [1, 1])[len(options) :])
    stride = stride or kernel
    if set(dilation) != {1} or any(len(set(sizes)) != 1 for sizes in (kernel, stride, padding)):
        r.refuse(f"with kernel {kernel}, stride {stride}, padding {padding}, dilation {dilation}")
    return kernel[0], stride[0], padding[0]


def _check_pooled(r: Rewrite, x: Shape, pooled: Shape, window: tuple[int, int, int]) -> None:
    """Rounding up (ceil_mode) is only refused where it makes a difference."""
    kernel, stride, padding = window
    rounded_down = tuple((size + 2 * padding - kernel) // stride + 1 for size in x[2:])
    if pooled[2:] != rounded_down:
        r.refuse(f"with ceil_mode, from {list(x[2:])} to {list(pooled[2:])} windows of {kernel}")


# Matrices and shapes.


def unsqueeze(r: Rewrite, x: Given, dim: int) -> Known | Copied:
    """A vector on its way to be seen as [B, C, 1, 1]."""
    rank = len(shape_of(r.at))
    if isinstance(x, PerPlane) and rank == 4 and dim % rank >= 2:
        return x
    # Of two dimensions, that is [B, C]: a parameter of one number per channel has one, and is torch's to broadcast.
    if isinstance(x, fx.Node) and len(shape_of(r.at.args[0])) == 2 and rank == 3 and dim % rank == 2:
        return PerPlane(x, (*shape_of(r.at), 1))
    return COPIED


def squeeze(r: Rewrite, x: Given, dim: int) -> Known | Copied:
    given, left = shape_of(r.at.args[0]), shape_of(r.at)
    if not isinstance(x, ON_PLANES):
        return COPIED
    if left == given:
        return x
    if dim % len(given) < 2 or given[2:] not in ((1, 1), (1,)):
        r.refuse(f"of dimension {dim} of {list(given)}")
    if isinstance(x, GradientTimesValue):  # planes of one pixel: torch left out the sum over them
        x = PerPlane(sum_of_planes(r, x), given)
    vector = r.vector(x, given)
    return vector if len(left) == 2 else PerPlane(vector, (*left, 1))


def expand(r: Rewrite, x: Given, _sizes: Given) -> Known | Copied:
    if not isinstance(x, ON_PLANES):
        return COPIED
    given, spread = shape_of(r.at.args[0]), shape_of(r.at)
    if spread == given:
        return x
    if len(given) != 4 or given[2:] != (1, 1) or spread[:2] != given[:2]:
        r.refuse(f"of {list(given)} to {list(spread)}")
    return PerPlane(r.vector(x, given), spread)


def transpose(r: Rewrite, x: Given) -> Known:
    return x.node if isinstance(x, Transposed) else Transposed(r.plain(x))


def product_from(r: Rewrite, start: Given, a: Given, b: Given) -> Known | Copied:
    """start + a b, with a start for every row or for every number."""
    shape = shape_of(r.at)
    return product(r, a, b, start) if shape_of(r.at.args[0]) in (shape, shape[1:]) else COPIED


def product(r: Rewrite, a: Given, b: Given, start: Given = None) -> fx.Node:
    flags = [isinstance(matrix, Transposed) for matrix in (a, b)]
    nodes = [matrix.node if isinstance(matrix, Transposed) else r.plain(matrix) for matrix in (a, b)]
    return r.emit(fedss.product.default, *nodes, *flags, None if start is None else r.plain(start))


def view(r: Rewrite, x: Given, sizes: list[int]) -> Known | Copied:
    """Between planes and what torch flattens them to, the batch comes first."""
    given, seen = shape_of(r.at.args[0]), shape_of(r.at)
    if isinstance(x, PerPlane) and seen == x.shape[:2]:
        return x.vector
    if isinstance(x, fx.Node) and len(given) == 2 and seen == (*given, 1, 1):
        return PerPlane(x, seen)
    if isinstance(x, ON_PLANES):
        turned = r.emit(aten.permute.default, r.planes(x), [1, 0, 2, 3])
        flat = r.emit(aten.view.default, r.contiguous(turned), sizes)
        if len(seen) != 4:
            return flat
        x = flat
    if len(seen) == 4:
        turned = r.emit(aten.permute.default, r.emit(aten.view.default, r.plain(x), sizes), [1, 0, 2, 3])
        return Planes(r.contiguous(turned))
    return COPIED


RULES: dict[Target, Rule] = {
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
    aten.mul.Scalar: multiply_by_number,
    aten.div.Scalar: divide,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.t.default: transpose,
    aten.mm.default: product,
    aten.addmm.default: product_from,
    aten.view.default: view,
}
