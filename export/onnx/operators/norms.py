"""GroupNorm, LayerNorm and BatchNorm as ATen has them, each with its gradient.

GroupNorm over images has its fastest form in `group_norm.py`.  LayerNorm, and GroupNorm over all else, normalise rows.
BatchNorm is an affine map per channel where its statistics are frozen, and normalises channels where they are not: of
weights, not of batches, since a step over micro-batches would not be exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from export.onnx.operators import group_norm as onnx_group_norm
from export.onnx.translation import Formulation, Translation, Value, refused, shape_of

aten = torch.ops.aten


def _normalised(t: Translation, x: str, axes: Sequence[int], epsilon: float) -> tuple[str, str, str]:
    """(x − mean)/σ over axes, with mean and 1/σ; the variance of the distances, not E[x²] − mean²."""
    g = t.graph
    mean = g.call("ReduceMean", x, g.integers(*axes))
    centred = g.subtract(x, mean)
    variance = g.call("ReduceMean", g.multiply(centred, centred), g.integers(*axes))
    inverse = g.call("Reciprocal", g.call("Sqrt", g.add(variance, g.number(epsilon))))
    return g.multiply(centred, inverse), mean, inverse


def _normalised_backward(t: Translation, dy: str, normed: str, inverse: str, axes: Sequence[int]) -> str:
    """∂x of the same, from the gradient of the normalised value."""
    g = t.graph
    mean = g.call("ReduceMean", dy, g.integers(*axes))
    slope = g.call("ReduceMean", g.multiply(dy, normed), g.integers(*axes))
    return g.multiply(inverse, g.subtract(g.subtract(dy, mean), g.multiply(normed, slope)))


def _layer_norm(
    t: Translation,
    _: fx.Node,
    x: fx.Node,
    sizes: Sequence[int],
    scale: fx.Node | None,
    shift: fx.Node | None,
    epsilon: float,
) -> tuple[Value, ...]:
    shape = shape_of(x)
    y, mean, inverse = _normalised(t, t.full(x), range(-len(sizes), 0), epsilon)
    if scale is not None:
        y = t.graph.multiply(y, t.full(scale))
    if shift is not None:
        y = t.graph.add(y, t.full(shift))
    statistics = (*shape[: -len(sizes)], *[1] * len(sizes))
    return Value(y, shape), Value(mean, statistics), Value(inverse, statistics)


def _layer_norm_backward(
    t: Translation,
    _: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    sizes: Sequence[int],
    mean: fx.Node,
    inverse: fx.Node,
    scale: fx.Node | None,
    __: fx.Node | None,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:
    g, shape, output = t.graph, shape_of(x), t.full(dy)
    inside, outside = range(-len(sizes), 0), range(len(shape) - len(sizes))
    inverse_name = t.compact(inverse).name
    normed = g.multiply(g.subtract(t.full(x), t.compact(mean).name), inverse_name)
    dx = d_scale = d_shift = None
    if wanted[0]:
        of_normed = output if scale is None else g.multiply(output, t.full(scale))
        dx = Value(_normalised_backward(t, of_normed, normed, inverse_name, inside), shape)
    if wanted[1]:
        d_scale = Value(_summed(t, g.multiply(output, normed), outside), tuple(sizes))
    if wanted[2]:
        d_shift = Value(_summed(t, output, outside), tuple(sizes))
    return dx, d_scale, d_shift


def _summed(t: Translation, value: str, axes: Sequence[int]) -> str:
    """ONNX takes no axes for all of them."""
    return t.graph.sum(value, *axes) if axes else value


def _group_norm(
    t: Translation,
    _: fx.Node,
    x: fx.Node,
    scale: fx.Node | None,
    shift: fx.Node | None,
    batch: int,
    channels: int,
    __: int,
    groups: int,
    epsilon: float,
) -> tuple[Value, ...]:
    """One axis more in the statistics than ATen has: only our own backward pass reads them."""
    g, shape, statistics = t.graph, shape_of(x), (batch, groups, 1)
    if scale is not None and shift is not None and len(shape) == 4:
        grouping = onnx_group_norm.Grouping(shape, groups)
        y, mean, inverse = onnx_group_norm.forward(
            g, grouping, t.full(x), t.full(scale), t.full(shift), epsilon
        )
        return Value(y, shape), Value(mean, statistics), Value(inverse, statistics)
    rows = g.reshape(t.full(x), batch, groups, math.prod(shape[1:]) // groups)
    y, mean, inverse = _normalised(t, rows, (2,), epsilon)
    y = g.reshape(y, *shape)
    of_channels = (channels, *[1] * (len(shape) - 2))
    if scale is not None:
        y = g.multiply(y, g.reshape(t.full(scale), *of_channels))
    if shift is not None:
        y = g.add(y, g.reshape(t.full(shift), *of_channels))
    return Value(y, shape), Value(mean, statistics), Value(inverse, statistics)


def _group_norm_backward(
    t: Translation,
    _: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    mean: fx.Node,
    inverse: fx.Node,
    scale: fx.Node | None,
    batch: int,
    channels: int,
    __: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:
    g, shape = t.graph, shape_of(x)
    mean_name, inverse_name = t.compact(mean).name, t.compact(inverse).name
    if scale is not None and len(shape) == 4:
        grouping = onnx_group_norm.Grouping(shape, groups)
        names = onnx_group_norm.backward(
            g, grouping, t.full(dy), t.full(x), t.full(scale), mean=mean_name, inverse=inverse_name
        )
        shapes = (shape, (channels,), (channels,))
        return tuple(
            Value(name, of) if want else None for name, of, want in zip(names, shapes, wanted, strict=True)
        )
    rows = (batch, groups, math.prod(shape[1:]) // groups)
    normed = g.multiply(g.subtract(g.reshape(t.full(x), *rows), mean_name), inverse_name)
    planes = (batch, channels, math.prod(shape[2:]))
    dx = d_scale = d_shift = None
    if wanted[0]:
        of_normed = t.full(dy)
        if scale is not None:
            of_normed = g.multiply(of_normed, g.reshape(t.full(scale), channels, *[1] * (len(shape) - 2)))
        of_rows = _normalised_backward(t, g.reshape(of_normed, *rows), normed, inverse_name, (2,))
        dx = Value(g.reshape(of_rows, *shape), shape)
    if wanted[1]:
        products = g.multiply(g.reshape(t.full(dy), *planes), g.reshape(normed, *planes))
        d_scale = Value(g.sum(products, 0, 2), (channels,))
    if wanted[2]:
        d_shift = Value(g.sum(g.reshape(t.full(dy), *planes), 0, 2), (channels,))
    return dx, d_scale, d_shift


def _frozen_batch_norm(
    t: Translation,
    _: fx.Node,
    x: fx.Node,
    scale: fx.Node | None,
    shift: fx.Node | None,
    mean: fx.Node,
    variance: fx.Node,
    __: float,
    epsilon: float,
) -> tuple[Value, ...]:
    """The statistics that a training BatchNorm would give back have no reader here."""
    g, shape, nothing = t.graph, shape_of(x), Value(t.graph.number(0), ())
    if len(shape) == 2:
        # The runtime's own operator goes from plane to plane, and these have one number.
        factor = g.call("Reciprocal", g.call("Sqrt", g.add(t.full(variance), g.number(epsilon))))
        factor = factor if scale is None else g.multiply(factor, t.full(scale))
        offset = g.multiply(t.full(mean), factor)
        offset = g.call("Neg", offset) if shift is None else g.subtract(t.full(shift), offset)
        return Value(g.add(g.multiply(t.full(x), factor), offset), shape), nothing, nothing
    scale_name, shift_name = _affine(t, scale, shift, mean)
    moments = (t.full(mean), t.full(variance))
    y = g.call("BatchNormalization", t.full(x), scale_name, shift_name, *moments, epsilon=float(epsilon))
    return Value(y, shape), nothing, nothing


def _affine(
    t: Translation, scale: fx.Node | None, shift: fx.Node | None, channels: fx.Node
) -> tuple[str, str]:
    """Scale and shift, 1 and 0 where there is none."""
    sizes = t.sizes(channels)
    return (
        t.graph.call("Expand", t.graph.number(1), sizes) if scale is None else t.full(scale),
        t.graph.call("Expand", t.graph.number(0), sizes) if shift is None else t.full(shift),
    )


def _batch_norm_of_weights(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    scale: fx.Node | None,
    shift: fx.Node | None,
    training: bool,
    _: float,
    epsilon: float,
) -> tuple[Value, ...]:
    """Without statistics to keep: weight standardisation, which normalises every filter of a convolution."""
    if not training:
        raise refused(node)
    g, shape = t.graph, shape_of(x)
    over, of_channels = _channel_axes(shape)
    y, mean, inverse = _normalised(t, t.full(x), over, epsilon)
    if scale is not None:
        y = g.multiply(y, g.reshape(t.full(scale), *of_channels))
    if shift is not None:
        y = g.add(y, g.reshape(t.full(shift), *of_channels))
    statistics = [Value(g.reshape(value, shape[1]), (shape[1],)) for value in (mean, inverse)]
    return Value(y, shape), *statistics


def _channel_axes(shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All axes but the channels', and the shape of a value per channel that broadcasts to the whole."""
    return (0, *range(2, len(shape))), (1, shape[1], *[1] * (len(shape) - 2))


def _batch_norm_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    scale: fx.Node | None,
    mean: fx.Node | None,
    variance: fx.Node | None,
    saved_mean: fx.Node | None,
    saved_inverse: fx.Node | None,
    training: bool,
    epsilon: float,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:
    g, shape, output = t.graph, shape_of(x), t.full(dy)
    over, of_channels = _channel_axes(shape)
    if training and saved_mean is not None and saved_inverse is not None:
        mean_name, inverse = t.full(saved_mean), t.full(saved_inverse)
    elif not training and mean is not None and variance is not None:
        mean_name = t.full(mean)
        inverse = g.call("Reciprocal", g.call("Sqrt", g.add(t.full(variance), g.number(epsilon))))
    else:
        raise refused(node)
    centred = g.subtract(t.full(x), g.reshape(mean_name, *of_channels))
    inverse_planes = g.reshape(inverse, *of_channels)
    dx = d_scale = d_shift = None
    if wanted[0] and training:
        of_normed = output if scale is None else g.multiply(output, g.reshape(t.full(scale), *of_channels))
        normed = g.multiply(centred, inverse_planes)
        dx = Value(_normalised_backward(t, of_normed, normed, inverse_planes, over), shape)
    elif wanted[0]:
        factor = inverse if scale is None else g.multiply(inverse, t.full(scale))
        dx = Value(g.multiply(output, g.reshape(factor, *of_channels)), shape)
    if wanted[1]:
        pixels = math.prod(shape[2:])
        if pixels >= onnx_group_norm.FUSED_PRODUCT_LENGTH:
            planes = (shape[0], shape[1], 1)
            sums = g.sum(onnx_group_norm.row_products(g, output, centred, planes, pixels), 0, 2)
        else:
            sums = g.sum(g.multiply(output, centred), *over)
        d_scale = Value(g.multiply(sums, inverse), (shape[1],))
    if wanted[2]:
        d_shift = Value(g.sum(output, *over), (shape[1],))
    return dx, d_scale, d_shift


FORMULATIONS: dict[object, Formulation] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._native_batch_norm_legit_no_training.default: _frozen_batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm_of_weights,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
