"""Operators that speak of dimensions, over planes [C, B, H, W]: batch and channels change places."""

from __future__ import annotations

import torch
from torch import fx

from export.executorch.formulas import (
    COPIED,
    ON_PLANES,
    Copied,
    Given,
    GradientTimesValue,
    Known,
    PerPlane,
    Planes,
)
from export.executorch.rewrite import SPREAD_OUT, Rewrite, shape_of
from export.executorch.rules.arithmetic import sum_of_planes

aten = torch.ops.aten
fedss = torch.ops.fedss
ON_PLANES_AT = (1, 0, 2, 3)
"""Where a dimension of [B, C, H, W] lies."""


def concatenate(r: Rewrite, parts: list[Given], dim: int = 0) -> Known | Copied:
    if not any(isinstance(part, SPREAD_OUT) for part in parts):
        return COPIED
    return Planes(r.emit(aten.cat.default, [r.planes(part) for part in parts], ON_PLANES_AT[dim]))


def take(r: Rewrite, x: Given, dim: int = 0, *rest: int) -> Known | Copied:
    """A slice."""
    if not isinstance(x, SPREAD_OUT):
        return COPIED
    return Planes(r.emit(aten.slice.Tensor, r.planes(x), ON_PLANES_AT[dim], *rest))


def split(r: Rewrite, x: Given, _sizes: Given, dim: int = 0) -> tuple[Known | None, ...] | Copied:
    if not isinstance(x, SPREAD_OUT):
        return COPIED
    planes, parts, start = r.planes(x), [], 0
    for made in r.at.meta["val"]:
        end = start + made.shape[dim]
        parts.append(Planes(r.emit(aten.slice.Tensor, planes, ON_PLANES_AT[dim], start, end)))
        start = end
    return tuple(parts)


def pad(r: Rewrite, x: Given, widths: list[int], number: float = 0.0) -> Known | Copied:
    """Wider, and narrower where a width is below 0, which ExecuTorch's kernel does not take."""
    on_planes = isinstance(x, SPREAD_OUT)
    if (on_planes and len(widths) > 4) or (not on_planes and min(widths) >= 0):
        return COPIED
    shape = shape_of(r.at.args[0])
    node = r.planes(x) if on_planes else r.plain(x)
    for at, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        dim = len(shape) - 1 - at  # torch counts from the last one, where planes lie as torch has them
        if min(before, after) < 0:
            node = r.emit(aten.slice.Tensor, node, dim, max(-before, 0), shape[dim] - max(-after, 0))
    wider = [max(width, 0) for width in widths]
    if any(wider):
        node = r.emit(aten.constant_pad_nd.default, node, wider, number)
    return Planes(node) if on_planes else node


def take_backward(r: Rewrite, gradient: Given, sizes: list[int], dim: int, *rest: int) -> Known | Copied:
    """Zeros around what was taken."""
    start, _end, step = rest
    if not isinstance(gradient, SPREAD_OUT) or step != 1 or len(sizes) != 4:
        return COPIED
    of_planes = [sizes[1], sizes[0], *sizes[2:]]
    place = ON_PLANES_AT[dim]
    taken = shape_of(r.at.args[0])[dim]
    first = start if start >= 0 else start + sizes[dim]
    node = r.planes(gradient)
    parts = [node]
    for before, size in ((True, first), (False, sizes[dim] - first - taken)):
        if size:
            shape = [*of_planes[:place], size, *of_planes[place + 1 :]]
            zeros = r.emit(aten.full.default, shape, 0.0)
            parts = [zeros, *parts] if before else [*parts, zeros]
    return Planes(r.emit(aten.cat.default, parts, place)) if len(parts) > 1 else Planes(node)


def unsqueeze(r: Rewrite, x: Given, dim: int) -> Known | Copied:
    """A vector on its way to be seen as [B, C, 1, 1]."""
    rank = len(shape_of(r.at))
    if isinstance(x, PerPlane) and rank == 4 and dim % rank >= 2:
        return x
    # Of two dimensions, that is [B, C]: a parameter of one number per channel has one, and is torch's to broadcast.
    is_vector = isinstance(x, fx.Node) and len(shape_of(r.at.args[0])) == 2 and rank == 3 and dim % rank == 2
    last = (2, 3, -1, -2)
    if is_vector and all(u.target is aten.unsqueeze.default and u.args[1] in last for u in r.at.users):
        assert isinstance(x, fx.Node)
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
    if len(left) == 2:
        return vector
    if all(user.target is aten.squeeze.dim and user.args[1] in (2, -1) for user in r.at.users):
        return PerPlane(vector, (*left, 1))
    return r.emit(aten.unsqueeze.default, vector, 2)


def expand(r: Rewrite, x: Given, _sizes: Given) -> Known | Copied:
    if not isinstance(x, ON_PLANES):
        return COPIED
    given, spread = shape_of(r.at.args[0]), shape_of(r.at)
    if spread == given:
        return x
    if len(given) != 4 or given[2:] != (1, 1) or spread[:2] != given[:2]:
        r.refuse(f"of {list(given)} to {list(spread)}")
    return PerPlane(r.vector(x, given), spread)


def view(r: Rewrite, x: Given, _sizes: Given) -> Known | Copied:
    """Between a vector and what torch sees as planes of one pixel; all else goes through torch's layout."""
    given, seen = shape_of(r.at.args[0]), shape_of(r.at)
    if isinstance(x, PerPlane) and seen == x.shape[:2]:
        return x.vector
    if isinstance(x, fx.Node) and len(given) == 2 and seen == (*given, 1, 1):
        return PerPlane(x, seen)
    return COPIED
