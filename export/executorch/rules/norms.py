"""GroupNorm, BatchNorm with frozen statistics, and the activations after them: formulas that whoever reads them computes."""

from __future__ import annotations

import math
import operator
from dataclasses import replace

import torch
from torch import fx

from export.executorch.formulas import (
    COPIED,
    ON_PLANES,
    Activation,
    Copied,
    Given,
    Known,
    PlaneGradient,
    Planes,
    Shape,
    ThroughActivation,
    Value,
)
from export.executorch.rewrite import Rewrite, Rule, shape_of

aten = torch.ops.aten
fedss = torch.ops.fedss


def group_norm(
    r: Rewrite, x: Given, gamma: Given, beta: Given, *rest: Given
) -> tuple[Value | fx.Node, Value, Value]:
    """ExecuTorch's own kernel takes E[x²] - E[x]², which loses what a flat input has left; ours does not."""
    *_sizes, groups, epsilon = rest
    assert isinstance(groups, int)
    assert isinstance(epsilon, float)
    shape = shape_of(r.at.args[0])
    planes = _as_planes(r, x, shape)
    moments = r.emit(fedss.group_moments.default, planes, groups, epsilon)
    scale, shift = (
        given if isinstance(given, fx.Node) else r.emit(aten.full.default, [shape[1]], neutral)
        for given, neutral in ((gamma, 1.0), (beta, 0.0))
    )
    value = Value(planes, moments, scale, shift)
    # The backward pass reads mean and deviation, and finds the value by them.
    return value if len(shape) == 4 else _from_planes(r, value, shape), value, value


def group_norm_backward(
    r: Rewrite, gradient: Given, _x: Given, value: Given, *_rest: Given
) -> tuple[Planes | fx.Node, fx.Node, fx.Node]:
    if not isinstance(value, Value):
        r.refuse("without GroupNorm's own moments")
    shape = shape_of(r.at.args[0])
    if len(shape) != 4:
        gradient = Planes(_as_planes(r, gradient, shape))
    value, parts = _through(r, gradient, value)
    node = r.emit(
        fedss.group_norm_gradient.default, parts.planes, parts.scale, parts.shift, *value.arguments()
    )
    outputs = [r.emit(operator.getitem, node, i) for i in range(3)]
    first = Planes(outputs[0])
    return first if len(shape) == 4 else _from_planes(r, first, shape), outputs[1], outputs[2]


def _as_planes(r: Rewrite, x: Given, shape: Shape) -> fx.Node:
    """[C, B, H, W] of any [B, C, ...]: what comes after the channels is one column of pixels."""
    if len(shape) == 4:
        return r.planes(x)
    pixels = r.emit(aten.reshape.default, r.plain(x), [*shape[:2], math.prod(shape[2:]), 1])
    return r.emit(fedss.permute.default, pixels, [1, 0, 2, 3])


def _from_planes(r: Rewrite, known: Value | Planes, shape: Shape) -> fx.Node:
    return r.emit(aten.reshape.default, r.plain(known), list(shape))


def _through(r: Rewrite, gradient: Given, value: Value) -> tuple[Value, PlaneGradient]:
    """The gradient of a value, seen through its activation where that is where it comes from."""
    if isinstance(gradient, ThroughActivation) and _before(gradient.value) == value:
        return gradient.value, gradient.gradient
    return value, r.gradient(gradient, shape_of(r.at.args[0]))


def frozen_norm(
    r: Rewrite, x: Given, gamma: Given, beta: Given, mean: Given, variance: Given, *rest: Given
) -> tuple[Value, None, None]:
    _momentum, epsilon = rest
    if not isinstance(gamma, fx.Node) or not isinstance(beta, fx.Node):
        r.refuse("without weight or bias")
    planes = r.planes(x)
    batch = shape_of(r.at.args[0])[0]
    assert isinstance(epsilon, float)
    statistics = (r.plain(mean), r.plain(variance))
    moments = r.emit(fedss.frozen_moments.default, *statistics, batch, epsilon)
    value = Value(planes, moments, gamma, beta)
    # The backward pass has no output of the forward pass to find the value by.
    r.frozen[_identity(r.at, 0, 1, 3, 4)] = value
    return value, None, None


def frozen_norm_backward(r: Rewrite, gradient: Given, *_rest: Given) -> tuple[Planes, fx.Node, fx.Node]:
    found = r.frozen.get(_identity(r.at, 1, 2, 3, 4))
    if found is None:
        r.refuse("of a BatchNorm that has no formula")
    value, parts = _through(r, gradient, found)
    node = r.emit(
        fedss.frozen_norm_gradient.default, parts.planes, parts.scale, parts.shift, *value.arguments()
    )
    outputs = [r.emit(operator.getitem, node, i) for i in range(3)]
    return Planes(outputs[0]), outputs[1], outputs[2]


def _identity(node: fx.Node, *places: int) -> tuple[object, ...]:
    """A BatchNorm by what it normalises, its weight and its statistics."""
    return tuple(node.args[place] for place in places)


# Activations.


def _before(value: Value) -> Value:
    """What its activation reads."""
    return replace(value, activation=Activation.NONE)


def _activation(r: Rewrite, x: Given, activation: Activation) -> Known | Copied:
    if r.at.meta["val"].dtype != torch.float32:
        return COPIED
    if isinstance(x, Value) and x.activation is Activation.NONE:
        return replace(x, activation=activation)
    if isinstance(x, ON_PLANES):
        return Planes(r.emit(fedss.activate.default, r.planes(x), int(activation)))
    return r.emit(fedss.activate.default, r.plain(x), int(activation))


def _activation_backward(r: Rewrite, gradient: Given, x: Given, activation: Activation) -> Known | Copied:
    """`x` is the activation's input, or its output where that tells as much (ReLU)."""
    if r.at.meta["val"].dtype != torch.float32:
        return COPIED
    tells = {Activation.NONE, activation} if activation is Activation.RELU else {Activation.NONE}
    if isinstance(x, Value) and x.activation in tells:
        parts = r.gradient(gradient, shape_of(r.at.args[0]))
        return ThroughActivation(parts, replace(x, activation=activation))
    if isinstance(x, ON_PLANES) or isinstance(gradient, ON_PLANES):
        arguments = (r.planes(gradient), r.planes(x), int(activation))
        return Planes(r.emit(fedss.activation_gradient.default, *arguments))
    return r.emit(fedss.activation_gradient.default, r.plain(gradient), r.plain(x), int(activation))


def forward_of(activation: Activation) -> Rule:
    return lambda r, x: _activation(r, x, activation)


def backward_of(activation: Activation) -> Rule:
    """Of an activation whose gradient takes its input."""
    return lambda r, gradient, x: _activation_backward(r, gradient, x, activation)


def backward_by_output(activation: Activation) -> Rule:
    """Of an activation whose gradient takes its output: a formula of that output tells its input."""

    def rule(r: Rewrite, gradient: Given, output: Given) -> Known | Copied:
        if not isinstance(output, Value) or output.activation is not activation:
            return COPIED
        return _activation_backward(r, gradient, _before(output), activation)

    return rule


def threshold_backward(r: Rewrite, gradient: Given, output: Given, threshold: float) -> Known | Copied:
    if threshold != 0:
        r.refuse(f"with threshold {threshold}")
    return _activation_backward(r, gradient, output, Activation.RELU)


def hardtanh(r: Rewrite, x: Given, low: float = -1.0, high: float = 1.0) -> Known | Copied:
    return _activation(r, x, Activation.RELU6) if (low, high) == (0, 6) else COPIED


def hardtanh_backward(r: Rewrite, gradient: Given, x: Given, low: float, high: float) -> Known | Copied:
    return _activation_backward(r, gradient, x, Activation.RELU6) if (low, high) == (0, 6) else COPIED


GELUS = {"none": Activation.GELU, "tanh": Activation.GELU_TANH}


def gelu(r: Rewrite, x: Given, *, approximate: str = "none") -> Known | Copied:
    return _activation(r, x, GELUS[approximate])


def gelu_backward(r: Rewrite, gradient: Given, x: Given, *, approximate: str = "none") -> Known | Copied:
    return _activation_backward(r, gradient, x, GELUS[approximate])


SOFTPLUS = (1, 20)
"""The beta and threshold that our kernel has; beyond the threshold a float32 is its own softplus."""


def softplus(r: Rewrite, x: Given, beta: float = 1, threshold: float = 20) -> Known | Copied:
    return _activation(r, x, Activation.SOFTPLUS) if (beta, threshold) == SOFTPLUS else COPIED


def softplus_backward(r: Rewrite, gradient: Given, x: Given, beta: float, threshold: float) -> Known | Copied:
    known = (beta, threshold) == SOFTPLUS
    return _activation_backward(r, gradient, x, Activation.SOFTPLUS) if known else COPIED


def mish_backward(r: Rewrite, gradient: Given, x: Given) -> Known | Copied:
    """ExecuTorch has no kernel for it and torch no decomposition: tanh(softplus(x)) and its slope."""
    on_planes = isinstance(x, ON_PLANES) or isinstance(gradient, ON_PLANES)
    g, given = (r.planes(each) if on_planes else r.plain(each) for each in (gradient, x))
    inside = r.emit(aten.tanh.default, r.emit(aten.softplus.default, given))
    square = r.emit(aten.mul.Tensor, inside, inside)
    beside = r.emit(aten.add.Scalar, r.emit(aten.mul.Scalar, square, -1.0), 1.0)
    steep = r.emit(
        aten.mul.Tensor, r.emit(aten.mul.Tensor, given, r.emit(aten.sigmoid.default, given)), beside
    )
    node = r.emit(aten.mul.Tensor, g, r.emit(aten.add.Tensor, inside, steep))
    return Planes(node) if on_planes else node
