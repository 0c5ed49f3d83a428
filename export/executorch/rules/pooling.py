"""Poolings in the operators of `ondevice/native`.

Square windows that fit the planes exactly have a kernel of their own; all others go to the one that takes any.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from export.executorch.formulas import COPIED, Copied, Given, Known, Planes, Shape
from export.executorch.rewrite import Rewrite, shape_of

aten = torch.ops.aten
fedss = torch.ops.fedss
Window = tuple[list[int], list[int], list[int], list[int]]
"""Kernel, stride, padding and dilation, each in height and in width."""


def max_pool(r: Rewrite, x: Given, kernel: list[int], *options: list[int]) -> tuple[Planes, None]:
    if any("getitem" in str(user.target) and user.args[1] == 1 for user in r.at.users if _is_read(user)):
        r.refuse("whose positions are read")
    window = _window(kernel, options)
    pooled, _indices = r.at.meta["val"]
    made = tuple(pooled.shape)
    square = _square(window, shape_of(r.at.args[0]), made)
    if square:
        return Planes(r.emit(fedss.max_pool.default, r.planes(x), *square)), None
    return Planes(r.emit(fedss.grid_max_pool.default, r.planes(x), *window, *made[2:])), None


def max_pool_backward(
    r: Rewrite, gradient: Given, x: Given, kernel: list[int], *options: list[int]
) -> Planes:
    window = _window(kernel, options)
    square = _square(window, shape_of(r.at.args[1]), shape_of(r.at.args[0]))
    planes = (r.planes(gradient), r.planes(x))
    if square:
        return Planes(r.emit(fedss.max_pool_gradient.default, *planes, *square))
    return Planes(r.emit(fedss.grid_max_pool_gradient.default, *planes, *window))


def _is_read(user: fx.Node) -> bool:
    """By something else than the gradient of the pooling, which finds the largest pixels again."""
    return any("max_pool2d_with_indices_backward" not in str(reader.target) for reader in user.users)


def average_pool(r: Rewrite, x: Given, kernel: list[int], *options: Given) -> Known | Copied:
    (height, width), arguments = shape_of(r.at)[2:], _average(kernel, options)
    return Planes(r.emit(fedss.average_pool.default, r.planes(x), *arguments, height, width))


def average_pool_backward(
    r: Rewrite, gradient: Given, _x: Given, kernel: list[int], *options: Given
) -> Known | Copied:
    (height, width), arguments = shape_of(r.at)[2:], _average(kernel, options)
    return Planes(r.emit(fedss.average_pool_gradient.default, r.planes(gradient), *arguments, height, width))


def adaptive_pool(r: Rewrite, x: Given, _sizes: Given) -> Known | Copied:
    """Windows of one size, where the planes can be parted into them."""
    kernel = _parts(shape_of(r.at.args[0]), shape_of(r.at))
    if kernel is None:
        return COPIED
    return average_pool(r, x, kernel)


def adaptive_pool_backward(r: Rewrite, gradient: Given, x: Given) -> Known | Copied:
    kernel = _parts(shape_of(r.at), shape_of(r.at.args[0]))
    if kernel is not None:
        return average_pool_backward(r, gradient, x, kernel)
    node = r.planes(gradient)
    for dim in (2, 3):
        node = _shared_out(r, node, dim)
    return Planes(node)


def _shared_out(r: Rewrite, gradient: fx.Node, dim: int) -> fx.Node:
    """Along one dimension: every window gives its pixels equal parts, and windows may overlap.  No runtime has a kernel."""
    size, made = shape_of(r.at)[dim], shape_of(r.at.args[0])[dim]
    total: fx.Node | None = None
    for at in range(made):
        first, last = at * size // made, -(-(at + 1) * size // made)
        part = r.emit(aten.slice.Tensor, gradient, dim, at, at + 1)
        part = r.emit(aten.mul.Scalar, part, 1.0 / (last - first))
        pixels = r.emit(aten.cat.default, [part] * (last - first), dim)
        around = [first, size - last] if dim == 3 else [0, 0, first, size - last]
        placed = r.emit(aten.constant_pad_nd.default, pixels, around, 0.0)
        total = placed if total is None else r.emit(aten.add.Tensor, total, placed)
    assert total is not None
    return total


def _parts(x: Shape, pooled: Shape) -> list[int] | None:
    sizes = list(zip(x[2:], pooled[2:], strict=True))
    whole = len(x) == 4 and all(made and size % made == 0 for size, made in sizes)
    return [size // made for size, made in sizes] if whole else None


def _average(
    kernel: list[int], options: Sequence[Given]
) -> tuple[list[int], list[int], list[int], int, bool]:
    """Kernel, stride, padding, divisor (0: the pixels), and whether padding counts as pixels."""
    defaults: tuple[Given, ...] = ([], [0, 0], False, True, None)
    stride, padding, _ceil, count_padding, divisor = (*options, *defaults[len(options) :])
    return _pair(kernel), _pair(stride or kernel), _pair(padding), _whole(divisor), bool(count_padding)


def _window(kernel: list[int], options: Sequence[list[int]]) -> Window:
    stride, padding, dilation = (*options[:3], *([], [0, 0], [1, 1])[len(options) :])
    return _pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation)


def _pair(sizes: object) -> list[int]:
    """torch takes one number for both dimensions."""
    assert isinstance(sizes, list)
    both = sizes if len(sizes) == 2 else sizes * 2
    return [_whole(size) for size in both]


def _whole(number: object) -> int:
    assert number is None or isinstance(number, int)
    return number or 0


def _square(window: Window, x: Shape, pooled: Shape) -> tuple[int, int, int] | None:
    """Kernel, stride and padding of a window that is square and is rounded down to whole windows."""
    kernel, stride, padding, dilation = window
    if set(dilation) != {1} or any(len(set(sizes)) != 1 for sizes in (kernel, stride, padding)):
        return None
    rounded_down = tuple((size + 2 * padding[0] - kernel[0]) // stride[0] + 1 for size in x[2:])
    return (kernel[0], stride[0], padding[0]) if pooled[2:] == rounded_down else None
