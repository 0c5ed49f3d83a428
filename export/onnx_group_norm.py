"""GroupNorm and its gradient in inference operators.

ONNX's own GroupNormalization gives no statistics for the backward pass, so both passes are written out.  What costs
time is passes over the activations, not arithmetic; the statistics are small.  So everything per group or channel is
folded into one scale and one shift for each (example, channel) plane, which `scale_planes` applies in one pass, and
sums of products are taken without writing the products to memory (`row_products`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from export.onnx_graph import GraphBuilder

FUSED_PRODUCT_LENGTH = 576
"""From so many numbers a row, `row_products` is faster as one grouped convolution than as Mul and ReduceSum."""


def forward(
    graph: GraphBuilder, shape: Sequence[int], groups: int, x: str, scale: str, shift: str, epsilon: float
) -> tuple[str, str, str]:
    """x of the given shape [B, C, H, W] -> y, and mean and 1/σ [B, groups, 1] for the backward pass."""
    batch, group_size = shape[0], _group_size(shape, groups)
    mean = graph.call("ReduceMean", graph.reshape(x, batch, groups, group_size), graph.integers(2))
    squares = row_products(graph, x, x, (batch, groups, 1), group_size)
    mean_square = graph.multiply(squares, graph.number(1 / group_size))
    variance = graph.subtract(mean_square, graph.multiply(mean, mean))
    variance = graph.call("Max", variance, graph.number(0))  # rounding may take it below
    inverse = graph.call("Pow", graph.add(variance, graph.number(epsilon)), graph.number(-0.5))
    plane_scale = graph.multiply(inverse, graph.reshape(scale, 1, groups, -1))  # [B, groups, C/groups]
    plane_shift = graph.subtract(graph.reshape(shift, 1, groups, -1), graph.multiply(mean, plane_scale))
    return scale_planes(graph, x, plane_scale, plane_shift, shape), mean, inverse


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
    """∂x, ∂scale, ∂shift.

    With x̂ = (x − mean)/σ, n numbers in a group, and s₁ and s₂ the group's sums of scale·∂y and scale·∂y·x̂:

        ∂x = (scale·∂y − s₁/n − x̂·s₂/n)/σ = a·∂y + b·x + c

    where a is a number for each plane, b and c for each group.
    """
    batch, channels, height, width = shape
    group_size = _group_size(shape, groups)
    per_channel = (batch, groups, channels // groups)
    scale = graph.reshape(scale, 1, groups, -1)
    dy_sum = graph.sum(graph.reshape(dy, *per_channel, height * width), 3)
    dy_x = row_products(graph, dy, x, per_channel, height * width)
    dy_normed = graph.multiply(graph.subtract(dy_x, graph.multiply(dy_sum, mean)), inverse)  # Σ ∂y·x̂

    s1 = graph.sum(graph.multiply(dy_sum, scale), 2, keep=True)  # [B, groups, 1]
    s2 = graph.sum(graph.multiply(dy_normed, scale), 2, keep=True)
    minus_inverse_n = graph.multiply(inverse, graph.number(-1 / group_size))
    a = graph.multiply(inverse, scale)
    b = graph.multiply(graph.multiply(s2, inverse), minus_inverse_n)
    c = graph.subtract(graph.multiply(s1, minus_inverse_n), graph.multiply(b, mean))

    from_dy = scale_planes(graph, dy, a, graph.call("Expand", c, graph.integers(*per_channel)), shape)
    from_x = graph.multiply(graph.reshape(x, batch, groups, group_size), b)
    dx = graph.add(from_dy, graph.reshape(from_x, *shape))
    return dx, graph.reshape(graph.sum(dy_normed, 0), channels), graph.reshape(graph.sum(dy_sum, 0), channels)


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


def row_products(graph: GraphBuilder, left: str, right: str, rows: Sequence[int], length: int) -> str:
    """The inner product of every row of `left` with the same row of `right`; the result has the shape `rows`.

    Long rows as a grouped convolution, one group a row, whose kernel is as long as its image: it writes no products
    to memory and takes half the time.  Short rows would pay a call for every group.
    """
    if length < FUSED_PRODUCT_LENGTH:
        return graph.sum(
            graph.multiply(graph.reshape(left, *rows, length), graph.reshape(right, *rows, length)), len(rows)
        )
    count = int(np.prod(rows))
    products = graph.call(
        "Conv",
        graph.reshape(left, 1, count, length),
        graph.reshape(right, count, 1, length),
        kernel_shape=(length,),
        group=count,
    )
    return graph.reshape(products, *rows)


def _group_size(shape: Sequence[int], groups: int) -> int:
    """How many numbers share one mean."""
    _, channels, height, width = shape
    return channels * height * width // groups
