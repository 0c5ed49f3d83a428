"""GroupNorm and its gradient in inference operators.

ONNX's own GroupNormalization gives no statistics for the backward pass, so both passes are written out.  What costs
time is passes over the activations, not arithmetic; the statistics are small.  So everything per group or channel is
folded into one scale and one shift for each (example, channel) plane, which `scale_planes` applies in one pass, and
sums of products are taken without writing the products to memory (`row_products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from export.onnx.graph import GraphBuilder

FUSED_PRODUCT_LENGTH = 576
"""From so many numbers per row on, `row_products` is faster as one grouped convolution than as Mul and ReduceSum."""


MEAN_PIECE = 48
"""Long sums are taken of pieces of at least so many numbers, then of the pieces: shorter ones would cost time."""


@dataclass(frozen=True)
class Grouping:
    """Images whose channels are normalised in groups."""

    shape: Sequence[int]
    """[B, C, H, W]"""
    groups: int

    @property
    def size(self) -> int:
        """How many numbers share one mean."""
        _, channels, height, width = self.shape
        return channels * height * width // self.groups


def forward(
    graph: GraphBuilder, grouping: Grouping, x: str, scale: str, shift: str, epsilon: float
) -> tuple[str, str, str]:
    """x -> y, and mean and 1/σ [B, groups, 1] for the backward pass."""
    shape, groups, group_size = grouping.shape, grouping.groups, grouping.size
    mean = row_means(graph, x, (shape[0], groups), group_size)
    centred = _centred(graph, grouping, x, mean)
    if shape[1] == groups:
        # A plane by itself may be flat: all that is left of it then is what rounding did to its mean, times 1/√ε.
        mean = graph.add(mean, row_means(graph, centred, (shape[0], groups), group_size))
        centred = _centred(graph, grouping, x, mean)
    squares = row_products(graph, centred, centred, (shape[0], groups, 1), group_size)
    variance = graph.multiply(squares, graph.number(1 / group_size))
    inverse = graph.call("Pow", graph.add(variance, graph.number(epsilon)), graph.number(-0.5))
    plane_scale = graph.multiply(inverse, graph.reshape(scale, 1, groups, -1))  # [B, groups, C/groups]
    plane_shift = graph.call("Expand", graph.reshape(shift, 1, groups, -1), graph.integers(shape[0], 1, 1))
    return scale_planes(graph, centred, plane_scale, plane_shift, shape), mean, inverse


def backward(
    graph: GraphBuilder, grouping: Grouping, dy: str, x: str, scale: str, *, mean: str, inverse: str
) -> tuple[str, str, str]:
    """∂x, ∂scale, ∂shift.

    With x̂ = (x − mean)/σ, n numbers in a group, and s₁ and s₂ the group's sums of scale·∂y and scale·∂y·x̂:

        ∂x = (scale·∂y − s₁/n − x̂·s₂/n)/σ = a·∂y + b·(x − mean) + c

    where a is a number for each plane, b and c for each group.
    """
    shape, groups, group_size = grouping.shape, grouping.groups, grouping.size
    batch, channels, height, width = shape
    per_channel = (batch, groups, channels // groups)
    scale = graph.reshape(scale, 1, groups, -1)
    dy_sum = graph.sum(graph.reshape(dy, *per_channel, height * width), 3)
    centred = _centred(graph, grouping, x, mean)
    # Σ ∂y·x̂
    dy_normed = graph.multiply(row_products(graph, dy, centred, per_channel, height * width), inverse)

    s1 = graph.sum(graph.multiply(dy_sum, scale), 2, keep=True)  # [B, groups, 1]
    s2 = graph.sum(graph.multiply(dy_normed, scale), 2, keep=True)
    minus_inverse_n = graph.multiply(inverse, graph.number(-1 / group_size))
    a = graph.multiply(inverse, scale)
    b = graph.multiply(graph.multiply(s2, inverse), minus_inverse_n)
    c = graph.multiply(s1, minus_inverse_n)

    from_dy = scale_planes(graph, dy, a, graph.call("Expand", c, graph.integers(*per_channel)), shape)
    from_x = graph.multiply(centred, b)
    dx = graph.add(from_dy, graph.reshape(from_x, *shape))
    return dx, graph.reshape(graph.sum(dy_normed, 0), channels), graph.reshape(graph.sum(dy_sum, 0), channels)


def scale_planes(graph: GraphBuilder, x: str, scale: str, shift: str, shape: Sequence[int]) -> str:
    """x·scale + shift, one pair of numbers per plane, in one pass over x where Mul and Add would take two: the
    inference BatchNormalization operator with (example, channel) planes posing as its channels."""
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

    Long rows as a grouped convolution, one group per row, whose kernel is as long as its image: it writes no products
    to memory and takes half the time.  Short rows, and short pieces of rows, would pay a call for every group.
    """
    fused = length >= FUSED_PRODUCT_LENGTH
    pieces = _pieces(length, FUSED_PRODUCT_LENGTH if fused else MEAN_PIECE)
    if not fused:
        split = (*rows, pieces, length // pieces)
        products = graph.multiply(graph.reshape(left, *split), graph.reshape(right, *split))
        return _summed(graph, graph.sum(products, len(split) - 1), rows, pieces)
    count = int(np.prod(rows)) * pieces
    products = graph.call(
        "Conv",
        graph.reshape(left, 1, count, length // pieces),
        graph.reshape(right, count, 1, length // pieces),
        kernel_shape=(length // pieces,),
        group=count,
    )
    return _summed(graph, products, rows, pieces)


def _summed(graph: GraphBuilder, parts: str, rows: Sequence[int], pieces: int) -> str:
    """The sums of `pieces` parts each, in the shape `rows`."""
    if pieces == 1:
        return graph.reshape(parts, *rows)
    return graph.sum(graph.reshape(parts, *rows, pieces), len(rows))


def row_means(graph: GraphBuilder, x: str, rows: Sequence[int], length: int) -> str:
    """The mean of every row, [*rows, 1]: of pieces, of their means, and so on."""
    while (pieces := _pieces(length, MEAN_PIECE)) > 1:
        parts = graph.reshape(x, *rows, pieces, length // pieces)
        x = graph.call("ReduceMean", parts, graph.integers(len(rows) + 1), keepdims=0)
        length = pieces
    return graph.call("ReduceMean", graph.reshape(x, *rows, length), graph.integers(len(rows)))


def _pieces(length: int, shortest: int) -> int:
    """Into how many equal pieces a long sum is split, none of them shorter than `shortest`.

    The runtime adds one number after the other, so that over a flat image, where all of them are equal, every addition
    rounds the same way.
    """
    return max((count for count in range(1, length // shortest + 1) if length % count == 0), default=1)


def _centred(graph: GraphBuilder, grouping: Grouping, x: str, mean: str) -> str:
    """x − mean, [B, groups, n].

    A pass over memory of its own, and worth it: on a flat image E[x²] − mean² and Σ ∂y·x − mean·Σ ∂y are small
    differences of large numbers, of which float32 keeps no digit.  Both passes read the same value.
    """
    return graph.subtract(graph.reshape(x, grouping.shape[0], grouping.groups, grouping.size), mean)
