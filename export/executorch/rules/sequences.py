"""Images and sequences alike as planes: a sequence [B, C, L] is an image of one row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from export.executorch.formulas import Given, Known, Planes, Shape
from export.executorch.rewrite import Rewrite

aten = torch.ops.aten
fedss = torch.ops.fedss


def planes_of(r: Rewrite, x: Given, shape: Shape) -> fx.Node:
    """[C, B, H, W] of what torch sees in this shape."""
    if len(shape) == 4:
        return r.planes(x)
    batch, channels, length = shape
    turned = r.emit(fedss.permute.default, r.plain(x), [1, 0, 2])
    return r.emit(aten.reshape.default, turned, [channels, batch, 1, length])


def as_traced(r: Rewrite, planes: fx.Node, shape: Shape) -> Known:
    """And back."""
    if len(shape) == 4:
        return Planes(planes)
    batch, channels, length = shape
    rows = r.emit(aten.reshape.default, planes, [channels, batch, length])
    return r.emit(fedss.permute.default, rows, [1, 0, 2])


def windows_of(r: Rewrite, weight: Given, shape: Shape) -> fx.Node:
    """Weights with a height and a width."""
    if len(shape) == 4:
        return r.plain(weight)
    made, channels, taps = shape
    return r.emit(aten.reshape.default, r.plain(weight), [made, channels, 1, taps])


def weight_as_traced(r: Rewrite, weight: fx.Node, shape: Shape) -> fx.Node:
    """And back."""
    return weight if len(shape) == 4 else r.emit(aten.reshape.default, weight, list(shape))


def in_two_dimensions(sizes: Sequence[int], missing: int) -> list[int]:
    """Of height and width; a sequence has the missing one as its height."""
    return list(sizes) if len(sizes) == 2 else [missing, *sizes]
