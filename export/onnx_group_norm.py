"""GroupNorm and its gradient in inference operators.

ONNX's own GroupNormalization gives no statistics for the backward pass, so both passes are written out.  What costs
time is passes over the activations, not arithmetic; the statistics are small.  So everything per group or channel is
folded into one scale and one shift for each (example, channel) plane, which `scale_planes` applies in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from export.onnx_graph import GraphBuilder


def forward(
    graph: GraphBuilder, shape: Sequence[int], groups: int, x: str, scale: str, shift: str, epsilon: float
) -> tuple[str, str, str]:
    """x of the given shape [B, C, H, W] -> y, and mean and 1/σ [B, groups] for the backward pass."""
    group_size = _group_size(shape, groups)
    rows = graph.reshape(x, -1, group_size)
    mean = graph.reshape(graph.call("ReduceMean", rows, graph.integers(1)), -1, groups, 1)
    squares = graph.reshape(graph.sum(graph.multiply(rows, rows), 1), -1, groups, 1)
    mean_square = graph.multiply(squares, graph.number(1 / group_size))
    variance = graph.subtract(mean_square, graph.multiply(mean, mean))
    variance = graph.call("Max", variance, graph.number(0))  # rounding may take it below
    inverse = graph.call("Reciprocal", graph.call("Sqrt", graph.add(variance, graph.number(epsilon))))
    plane_scale = graph.multiply(inverse, graph.reshape(scale, 1, groups, -1))  # [B, groups, C/groups]
    plane_shift = graph.subtract(graph.reshape(shift, 1, groups, -1), graph.multiply(mean, plane_scale))
    y = scale_planes(graph, x, plane_scale, plane_shift, shape)
    return y, graph.reshape(mean, -1, groups), graph.reshape(inverse, -1, groups)


def backward(
    graph: GraphBuilder,
    shape: Sequence[int],
    groups: int,
    dy: str,
    x: str,
    mean: str,
    inverse: str,
    scale: str,
) -> tuple[str, str, str]:
    """∂x, ∂scale, ∂shift.  ∂x = a·∂y + b·x + c with a a number for each plane, b and c for each group."""
    batch, channels, height, width = shape
    group_size = _group_size(shape, groups)
    per_channel = (batch, groups, channels // groups)
    dy_planes, x_planes = (graph.reshape(value, batch, channels, height * width) for value in (dy, x))
    dy_x = graph.reshape(graph.sum(graph.multiply(dy_planes, x_planes), 2), *per_channel)
    dy_sum = graph.reshape(graph.sum(dy_planes, 2), *per_channel)
    mean, inverse = (graph.reshape(value, batch, groups, 1) for value in (mean, inverse))
    scale = graph.reshape(scale, 1, groups, -1)

    group_dy_x = graph.sum(graph.multiply(dy_x, scale), 2, keep=True)  # [B, groups, 1]
    group_dy = graph.sum(graph.multiply(dy_sum, scale), 2, keep=True)
    per_element = graph.multiply(inverse, graph.number(1 / group_size))
    cubed = graph.multiply(per_element, graph.multiply(inverse, inverse))
    b = graph.multiply(graph.subtract(graph.multiply(group_dy, mean), group_dy_x), cubed)
    c = graph.call("Neg", graph.add(graph.multiply(b, mean), graph.multiply(group_dy, per_element)))
    a = graph.multiply(inverse, scale)  # [B, groups, C/groups]

    from_dy = scale_planes(graph, dy, a, graph.call("Expand", c, graph.integers(*per_channel)), shape)
    from_x = graph.multiply(graph.reshape(x, -1, group_size), graph.reshape(b, -1, 1))
    dx = graph.add(from_dy, graph.reshape(from_x, *shape))
    d_scale = graph.sum(graph.multiply(graph.subtract(dy_x, graph.multiply(dy_sum, mean)), inverse), 0)
    return dx, graph.reshape(d_scale, channels), graph.reshape(graph.sum(dy_sum, 0), channels)


def scale_planes(graph: GraphBuilder, x: str, scale: str, shift: str, shape: Sequence[int]) -> str:
    """x·scale + shift, one pair of numbers a plane, in one pass over x where Mul and Add would take two: the inference
    BatchNormalization operator with (example, channel) planes posing as its channels."""
    batch, channels, height, width = shape
    planes = batch * channels
    mean, variance = graph.constant(np.zeros(planes, np.float32)), graph.constant(np.ones(planes, np.float32))
    y = graph.call(
        "BatchNormalization",
        graph.reshape(x, 1, planes, height * width),
        graph.reshape(scale, -1),
        graph.reshape(shift, -1),
        mean,
        variance,
        epsilon=0.0,
    )
    return graph.reshape(y, *shape)


def _group_size(shape: Sequence[int], groups: int) -> int:
    """How many numbers share one mean."""
    _, channels, height, width = shape
    return channels * height * width // groups
