"""Activations and their gradients.

What costs is passes over memory, and comparisons, which ONNX Runtime does not vectorise: HardSigmoid with a huge slope is 0
up to 0 and 1 above it, and is.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from export.onnx.operators.pieces import halves
from export.onnx.translation import Formulation, Translation, Value, refused, shape_of

aten = torch.ops.aten

ROOT_TWO_OVER_PI, CUBIC = math.sqrt(2 / math.pi), 0.044715
"""Of GELU's approximation by tanh."""


def _step(t: Translation, x: str) -> str:
    """1 where x > 0, else 0."""
    return t.graph.call("HardSigmoid", x, alpha=1e30, beta=0.0)


def _one(operator_name: str) -> Formulation:
    def formulation(t: Translation, _: fx.Node, x: fx.Node) -> Value:
        return t.elementwise(operator_name, x)

    return formulation


def _threshold(t: Translation, node: fx.Node, x: fx.Node, threshold: float, value: float) -> Value:
    above = t.graph.call("Greater", t.full(x), t.graph.number(threshold))
    return Value(t.graph.call("Where", above, t.full(x), t.graph.number(value)), shape_of(node))


def _threshold_backward(t: Translation, node: fx.Node, dy: fx.Node, y: fx.Node, threshold: float) -> Value:
    reached = t.full(y) if threshold == 0 else t.graph.subtract(t.full(y), t.graph.number(threshold))
    return Value(t.graph.multiply(t.compact(dy).name, _step(t, reached)), shape_of(node))


def _hardsigmoid(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.call("HardSigmoid", t.full(x), alpha=1 / 6, beta=0.5), shape_of(node))


def _hardsigmoid_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> Value:
    g = t.graph
    inside = _step(t, g.subtract(g.number(3), g.call("Abs", t.full(x))))
    return Value(g.multiply(t.full(dy), g.multiply(inside, g.number(1 / 6))), shape_of(node))


def _hardswish(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.multiply(t.full(x), _hardsigmoid(t, node, x).name), shape_of(node))


def _hardswish_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> Value:
    """The slope is s = x/3 + 1/2 within ±3, 0 below and 1 above.  ThresholdedRelu makes a line jump to 0: applied to
    3s it cuts off what is below, applied to 3 − 3s what is above.  Comparisons and Shrink take 4 times as long."""
    g = t.graph
    from_below = g.call("ThresholdedRelu", g.add(t.full(x), g.number(1.5)), alpha=-1.5)
    from_above = g.call("ThresholdedRelu", g.subtract(g.number(3), from_below), alpha=-1.5)
    slope = g.add(g.multiply(from_above, g.number(-1 / 3)), g.number(1))
    return Value(g.multiply(t.compact(dy).name, slope), shape_of(node))


def _hardtanh(t: Translation, node: fx.Node, x: fx.Node, low: float = -1.0, high: float = 1.0) -> Value:
    return Value(_clipped(t, x, low, high), shape_of(node))


def _clipped(t: Translation, x: fx.Node, low: float, high: float) -> str:
    return t.graph.call("Clip", t.full(x), t.graph.number(low), t.graph.number(high))


def _hardtanh_backward(
    t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node, low: float, high: float
) -> Value:
    """(y − low)·(high − y) is above 0 between the kinks alone; y is the forward pass's own value."""
    g, y = t.graph, _clipped(t, x, low, high)
    above = y if low == 0 else g.subtract(y, g.number(low))
    inside = _step(t, g.multiply(above, g.subtract(g.number(high), y)))
    return Value(g.multiply(t.full(dy), inside), shape_of(node))


def _leaky_relu(t: Translation, node: fx.Node, x: fx.Node, slope: float = 0.01) -> Value:
    return Value(t.graph.call("LeakyRelu", t.full(x), alpha=float(slope)), shape_of(node))


def _leaky_relu_backward(
    t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node, slope: float, _is_result: bool
) -> Value:
    """Input and result have the same sign, unless the slope is negative."""
    if _is_result and slope < 0:
        raise refused(node)
    g = t.graph
    slopes = g.add(g.multiply(_step(t, t.full(x)), g.number(1 - slope)), g.number(slope))
    return Value(g.multiply(t.full(dy), slopes), shape_of(node))


def _prelu(t: Translation, node: fx.Node, x: fx.Node, slope: fx.Node) -> Value:
    return Value(t.graph.call("PRelu", t.full(x), t.compact(slope).name), shape_of(node))


def _prelu_backward(t: Translation, _: fx.Node, dy: fx.Node, x: fx.Node, slope: fx.Node) -> tuple[Value, ...]:
    g = t.graph
    below = g.call("Less", t.full(x), g.number(0))
    to_slope = g.multiply(t.full(dy), g.call("Min", t.full(x), g.number(0)))
    to_x = g.call("Where", below, g.multiply(t.full(dy), t.compact(slope).name), t.full(dy))
    return Value(to_x, shape_of(x)), Value(to_slope, shape_of(x))


def _elu(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    alpha: float = 1.0,
    scale: float = 1.0,
    input_scale: float = 1.0,
) -> Value:
    """ELU, SELU and CELU differ in their three numbers."""
    g = t.graph
    scaled = t.full(x) if input_scale == 1 else g.multiply(t.full(x), g.number(input_scale))
    below = g.call("Elu", g.call("Min", scaled, g.number(0)), alpha=float(alpha))
    return Value(g.multiply(g.add(g.call("Relu", t.full(x)), below), g.number(scale)), shape_of(node))


def _elu_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: fx.Node,
) -> Value:
    if is_result:
        raise refused(node)
    g = t.graph
    above = _step(t, t.full(x))
    exponential = g.call("Exp", g.multiply(g.call("Min", t.full(x), g.number(0)), g.number(input_scale)))
    below = g.multiply(g.subtract(g.number(1), above), g.multiply(exponential, g.number(alpha * input_scale)))
    return Value(g.multiply(t.full(dy), g.multiply(g.add(above, below), g.number(scale))), shape_of(node))


def _sigmoid_backward(t: Translation, node: fx.Node, dy: fx.Node, y: fx.Node) -> Value:
    g = t.graph
    slope = g.multiply(t.full(y), g.subtract(g.number(1), t.full(y)))
    return Value(g.multiply(t.full(dy), slope), shape_of(node))


def _tanh_backward(t: Translation, node: fx.Node, dy: fx.Node, y: fx.Node) -> Value:
    g = t.graph
    slope = g.subtract(g.number(1), g.multiply(t.full(y), t.full(y)))
    return Value(g.multiply(t.full(dy), slope), shape_of(node))


def _silu(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.multiply(t.full(x), t.graph.call("Sigmoid", t.full(x))), shape_of(node))


def _silu_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> Value:
    """With s = sigmoid(x) and y = x·s of the forward pass, the slope is s + y·(1 − s)."""
    g, s = t.graph, t.graph.call("Sigmoid", t.full(x))
    slope = g.add(s, g.multiply(_silu(t, node, x).name, g.subtract(g.number(1), s)))
    return Value(g.multiply(t.full(dy), slope), shape_of(node))


def _softplus(
    t: Translation, node: fx.Node, x: fx.Node, beta: float = 1.0, _threshold: float = 20.0
) -> Value:
    """Above the threshold torch takes x itself: the same to float32's last digit."""
    if beta * _threshold < 15:
        raise refused(node)
    g = t.graph
    if beta == 1:
        return Value(g.call("Softplus", t.full(x)), shape_of(node))
    softplus = g.call("Softplus", g.multiply(t.full(x), g.number(beta)))
    return Value(g.multiply(softplus, g.number(1 / beta)), shape_of(node))


def _softplus_backward(
    t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node, beta: float, _threshold: float
) -> Value:
    scaled = t.full(x) if beta == 1 else t.graph.multiply(t.full(x), t.graph.number(beta))
    return Value(t.graph.multiply(t.full(dy), t.graph.call("Sigmoid", scaled)), shape_of(node))


def _log_sigmoid(t: Translation, _: fx.Node, x: fx.Node) -> tuple[Value, ...]:
    """The second output is a buffer that our backward pass does without."""
    g = t.graph
    value = g.call("Neg", g.call("Softplus", g.call("Neg", t.full(x))))
    return Value(value, shape_of(x)), Value(g.number(0), ())


def _log_sigmoid_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node, _buffer: fx.Node) -> Value:
    slope = t.graph.call("Sigmoid", t.graph.call("Neg", t.full(x)))
    return Value(t.graph.multiply(t.full(dy), slope), shape_of(node))


def _mish(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    g = t.graph
    return Value(g.multiply(t.full(x), g.call("Tanh", g.call("Softplus", t.full(x)))), shape_of(node))


def _mish_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> Value:
    g = t.graph
    tanh = g.call("Tanh", g.call("Softplus", t.full(x)))
    rest = g.subtract(g.number(1), g.multiply(tanh, tanh))
    slope = g.add(tanh, g.multiply(g.multiply(t.full(x), g.call("Sigmoid", t.full(x))), rest))
    return Value(g.multiply(t.full(dy), slope), shape_of(node))


def _gelu(t: Translation, node: fx.Node, x: fx.Node, *, approximate: str = "none") -> Value:
    g, name = t.graph, t.full(x)
    if approximate == "none":
        # In the form that the runtime computes in one pass, where nobody else reads the parts.
        return Value(g.multiply(g.multiply(name, _twice_gelu_share(t, x)), g.number(0.5)), shape_of(node))
    return Value(g.multiply(name, _gelu_tanh_share(t, x)), shape_of(node))


def _gelu_backward(
    t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node, *, approximate: str = "none"
) -> Value:
    """GELU is x·Φ(x), its slope Φ(x) + x·φ(x); with tanh Φ is (1 + tanh u)/2, whose slope is 2·Φ·(1 − Φ)·u'."""
    g, name = t.graph, t.full(x)
    square = g.multiply(name, name)
    if approximate == "none":
        share = g.multiply(_twice_gelu_share(t, x), g.number(0.5))
        bell = g.call(
            "Exp", g.add(g.multiply(square, g.number(-0.5)), g.number(-0.5 * math.log(2 * math.pi)))
        )
        growth = g.multiply(name, bell)
    else:
        share = _gelu_tanh_share(t, x)
        inner = g.add(
            g.number(2 * ROOT_TWO_OVER_PI), g.multiply(square, g.number(6 * CUBIC * ROOT_TWO_OVER_PI))
        )
        growth = g.multiply(g.multiply(name, inner), g.multiply(share, g.subtract(g.number(1), share)))
    return Value(g.multiply(t.full(dy), g.add(share, growth)), shape_of(node))


def _twice_gelu_share(t: Translation, x: fx.Node) -> str:
    """2·Φ(x)"""
    g = t.graph
    return g.add(g.call("Erf", g.call("Div", t.full(x), g.number(math.sqrt(2)))), g.number(1))


def _gelu_tanh_share(t: Translation, x: fx.Node) -> str:
    """(1 + tanh u)/2 = sigmoid(2u)"""
    g, name = t.graph, t.full(x)
    cubic = g.add(
        g.number(2 * ROOT_TWO_OVER_PI),
        g.multiply(g.multiply(name, name), g.number(2 * ROOT_TWO_OVER_PI * CUBIC)),
    )
    return g.call("Sigmoid", g.multiply(name, cubic))


def _glu(t: Translation, node: fx.Node, x: fx.Node, axis: int = -1) -> Value:
    value, gate = halves(t, x, axis)
    return Value(t.graph.multiply(value, t.graph.call("Sigmoid", gate)), shape_of(node))


def _glu_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node, axis: int) -> Value:
    g = t.graph
    value, gate = halves(t, x, axis)
    s = g.call("Sigmoid", gate)
    to_value = g.multiply(t.full(dy), s)
    to_gate = g.multiply(g.multiply(to_value, value), g.subtract(g.number(1), s))
    return Value(g.call("Concat", to_value, to_gate, axis=axis % len(shape_of(x))), shape_of(node))


FORMULATIONS: dict[object, Formulation] = {
    aten.relu.default: _one("Relu"),
    aten.sigmoid.default: _one("Sigmoid"),
    aten.tanh.default: _one("Tanh"),
    aten.threshold.default: _threshold,
    aten.threshold_backward.default: _threshold_backward,
    aten.hardsigmoid.default: _hardsigmoid,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.hardswish.default: _hardswish,
    aten.hardswish_backward.default: _hardswish_backward,
    aten.hardtanh.default: _hardtanh,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.leaky_relu.default: _leaky_relu,
    aten.leaky_relu_backward.default: _leaky_relu_backward,
    aten._prelu_kernel.default: _prelu,
    aten._prelu_kernel_backward.default: _prelu_backward,
    aten.elu.default: _elu,
    aten.elu_backward.default: _elu_backward,
    aten.sigmoid_backward.default: _sigmoid_backward,
    aten.tanh_backward.default: _tanh_backward,
    aten.silu.default: _silu,
    aten.silu_backward.default: _silu_backward,
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: _softplus_backward,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.mish.default: _mish,
    aten.mish_backward.default: _mish_backward,
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten.glu.default: _glu,
    aten.glu_backward.default: _glu_backward,
}
