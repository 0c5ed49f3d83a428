"""Sums and products over planes in the operators of `ondevice/native`: shortcuts, gates, averages, and their gradients.

Operands may differ in size, as where one number per plane meets planes.  What fits no formula is written as planes and
left to ATen's own operator, which broadcasts over [C, B, H, W] as it does over [B, C, H, W].
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from export.executorch.formulas import (
    COPIED,
    ON_PLANES,
    Copied,
    Gated,
    Given,
    GradientTimesValue,
    Known,
    PerPlane,
    PlaneGradient,
    Planes,
    Shape,
    Value,
)
from export.executorch.rewrite import Rewrite, shape_of

aten = torch.ops.aten
fedss = torch.ops.fedss


def multiply(r: Rewrite, a: Given, b: Given) -> Known | Copied:
    if not _on_planes(a, b):
        return COPIED
    if isinstance(b, (int, float)):
        return multiply_by_number(r, a, b)
    shapes = [shape_of(argument) for argument in r.at.args]
    for one, other, at in ((a, b, 0), (b, a, 1)):
        if shapes[at] != shape_of(r.at):
            continue
        match one, other:
            case PerPlane(), PerPlane():
                return PerPlane(r.emit(aten.mul.Tensor, one.vector, other.vector), shapes[at])
            case Value(), PerPlane():
                return Gated(one, _for_every_plane(r, other, shapes[1 - at], shapes[at]))
            case Planes(), PerPlane():
                scale = _for_every_plane(r, other, shapes[1 - at], shapes[at])
                return PlaneGradient(one.node, shapes[at], scale=scale)
            case Planes(), Value() if shapes[0] == shapes[1]:
                return GradientTimesValue(one.node, other)
            case Value(), _ if _is_pixel(shapes[1 - at]):
                return Gated(one, _for_every_plane(r, other, shapes[1 - at], shapes[at]))
    return Planes(r.emit(aten.mul.Tensor, r.planes(a), r.planes(b)))


def _for_every_plane(r: Rewrite, factor: Given, shape: Shape, planes: Shape) -> fx.Node:
    """[B, C]; a factor that all examples share, as the scale of a layer is, is repeated, and so is one of all channels."""
    vector = r.vector(factor, shape)
    if shape[:2] == planes[:2]:
        return vector
    return r.contiguous(r.emit(aten.expand.default, vector, list(planes[:2])))


def multiply_by_number(r: Rewrite, x: Given, number: float) -> Known | Copied:
    if not _on_planes(x):
        return COPIED
    if isinstance(x, PerPlane):
        return replace(x, vector=r.emit(aten.mul.Scalar, x.vector, number))
    return Planes(r.emit(aten.mul.Scalar, r.planes(x), number))


def divide(r: Rewrite, x: Given, by: float) -> Known | Copied:
    return multiply_by_number(r, x, 1.0 / by)


def add(r: Rewrite, a: Given, b: Given, *, alpha: float = 1) -> Known | Copied:
    if not _on_planes(a, b):
        return COPIED
    if isinstance(b, (int, float)):
        return Planes(r.emit(aten.add.Scalar, r.planes(a), b * alpha))
    if alpha != 1:
        return Planes(r.emit(aten.add.Tensor, r.planes(a), r.planes(b), alpha=alpha))
    if shape_of(r.at.args[0]) == shape_of(r.at.args[1]):
        for one, other in ((a, b), (b, a)):
            match one, other:
                case PerPlane(), PerPlane():
                    return replace(one, vector=r.emit(aten.add.Tensor, one.vector, other.vector))
                case PlaneGradient(shift=None), PerPlane():
                    return replace(one, shift=other.vector)
                case Value(), Planes() | Value() | Gated():
                    if one is b and isinstance(a, Value):
                        continue  # of two values the left one, the shortcut, is the one that others read too
                    residual = r.planes(other)
                    return Planes(r.emit(fedss.materialise.default, *one.arguments(), None, residual))
        if isinstance(a, Planes) and isinstance(b, Planes):
            return Planes(_add_planes(r, a.node, b.node))
    return Planes(r.emit(aten.add.Tensor, r.planes(a), r.planes(b)))


def _add_planes(r: Rewrite, a: fx.Node, b: fx.Node) -> fx.Node:
    """A gradient that joins another one: the product that makes it starts from the other instead of from 0."""
    for product, other, traced in ((a, b, r.at.args[0]), (b, a, r.at.args[1])):
        assert isinstance(traced, fx.Node)
        if (
            r.is_newest(product)
            and product is not other
            and len(traced.users) == 1  # nobody else reads the gradient without the other one
            and product.target is fedss.pointwise_input_gradient.default
            and product.args[2] is None
        ):
            product.args = (*product.args[:2], other)
            return product
    return r.emit(aten.add.Tensor, a, b)


def mean(r: Rewrite, x: Given, dims: list[int] | None, keepdim: bool = False) -> Known | Copied:
    if not _on_planes(x):
        return COPIED
    if sorted(dim % 4 for dim in dims or ()) != [2, 3]:
        r.refuse(f"over dimensions {dims}")
    pooled = r.emit(fedss.pooled_mean.default, *r.value_arguments(x))
    return PerPlane(pooled, shape_of(r.at)) if keepdim else pooled


def sum_over(r: Rewrite, x: Given, dims: list[int] | None, keepdim: bool = False) -> Known | Copied:
    if not _on_planes(x):
        return COPIED
    batch, channels, *sizes = shape_of(r.at.args[0])
    summed = {dim % 4 for dim in dims or ()}
    if summed == {0, 2, 3}:
        of_channels = r.emit(fedss.channel_sums.default, r.planes(x))
        if not keepdim:
            return of_channels
        return Planes(r.emit(aten.reshape.default, of_channels, [channels, 1, 1, 1]))
    if keepdim:  # torch leaves out dimensions of one element
        summed |= {dim for dim, size in zip((2, 3), sizes, strict=True) if size == 1}
    if summed != {2, 3}:
        r.refuse(f"over dimensions {dims}")
    pooled = sum_of_planes(r, x)
    return PerPlane(pooled, (batch, channels, 1, 1)) if keepdim else pooled


def sum_of_planes(r: Rewrite, x: Given) -> fx.Node:
    """[B, C]"""
    if isinstance(x, GradientTimesValue):
        return r.emit(fedss.pooled_product.default, x.planes, *x.value.arguments())
    sums = r.emit(aten.sum.dim_IntList, r.planes(x), [2, 3])
    return r.emit(fedss.permute.default, sums, [1, 0])


def _on_planes(*operands: Given) -> bool:
    return any(isinstance(operand, ON_PLANES) for operand in operands)


def _is_pixel(shape: Shape) -> bool:
    """Whether it is one number per plane, as torch sees it."""
    return len(shape) == 4 and shape[2:] == (1, 1)
