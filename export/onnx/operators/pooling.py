"""Pooling and resampling over one or two axes, with gradients.

An average over windows, an adaptive average and an interpolation are linear maps of each axis by itself: a constant matrix
per axis, and its transpose for the gradient.  torch writes the matrices, so that every rounding of a size and every count at
the border is torch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from export.onnx.translation import Formulation, Translation, Value, refused, shape_of
from ondevice.contract.vocabulary import FloatArray

aten = torch.ops.aten

Sizes = int | Sequence[int]
AlongAxis = Callable[[Tensor], Tensor]
"""[1, 1, n] -> [1, 1, m], linear."""


def _pair(sizes: Sizes) -> tuple[int, int]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return given[0], given[-1]


@dataclass(frozen=True)
class _Windows:
    """The windows of a max-pooling over images; pairs are (height, width)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    starts: tuple[int, int]
    """Padding at the beginning."""
    ends: tuple[int, int]
    """And at the end: a ceiling gives windows that reach beyond the image, and padding as far as the last window goes
    says the same, however a runtime rounds."""

    @property
    def outside(self) -> bool:
        """ONNX Runtime wants padding that is smaller than the kernel; more of it has to be part of the image."""
        return any(
            pad >= size
            for pads in (self.starts, self.ends)
            for pad, size in zip(pads, self.kernel, strict=True)
        )


def _windows(
    image: Sequence[int],
    output: Sequence[int],
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
) -> _Windows:
    kernels, dilations, starts = _pair(kernel), _pair(dilation), _pair(padding)
    strides = _pair(stride) if stride else kernels
    reaches = [d * (k - 1) + 1 for d, k in zip(dilations, kernels, strict=True)]
    ends = [
        max(0, (output[axis] - 1) * strides[axis] + reaches[axis] - image[axis] - starts[axis])
        for axis in (0, 1)
    ]
    return _Windows(kernels, strides, dilations, starts, (ends[0], ends[1]))


def _max_pool(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    _: bool = False,
) -> tuple[Value, ...]:
    output = tuple(node.meta["val"][0].shape)
    if len(output) != 4:
        raise refused(node, "max-pooling is formulated for batches of images")
    windows = _windows(
        shape_of(x)[2:], output[2:], kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )
    name, pads = t.full(x), (*windows.starts, *windows.ends)
    if windows.outside:
        sizes = t.graph.integers(0, 0, *windows.starts, 0, 0, *windows.ends)
        name, pads = t.graph.call("Pad", name, sizes, t.graph.number(-math.inf)), (0, 0, 0, 0)
    names = t.graph.call_many(
        "MaxPool",
        2,
        name,
        kernel_shape=windows.kernel,
        strides=windows.stride,
        pads=pads,
        dilations=windows.dilation,
    )
    return tuple(Value(found, output) for found in names)


def _max_pool_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    _: bool,
    places: fx.Node,
) -> Value:
    """Every ∂y goes to the place its maximum came from.  ONNX counts those places through the whole tensor."""
    g, shape = t.graph, shape_of(x)
    windows = _windows(
        shape[2:], shape_of(dy)[2:], kernel=kernel, stride=stride, padding=padding, dilation=dilation
    )
    padded = shape
    if windows.outside:
        padded = (
            *shape[:2],
            *(sum(sizes) for sizes in zip(shape[2:], windows.starts, windows.ends, strict=True)),
        )
    zeros = g.call("ConstantOfShape", g.integers(math.prod(padded)))
    flat = (g.reshape(t.full(places), -1), g.reshape(t.full(dy), -1))
    scattered = g.reshape(g.call("ScatterElements", zeros, *flat, reduction="add"), *padded)
    for axis in (2, 3) if windows.outside else ():
        start = windows.starts[axis - 2]
        scattered = g.slice(scattered, axis, start, start + shape[axis])
    return Value(scattered, shape_of(node))


def _adaptive_max_pool(t: Translation, node: fx.Node, x: fx.Node, sizes: Sequence[int]) -> tuple[Value, ...]:
    output = tuple(node.meta["val"][0].shape)
    kernel = [size // count for size, count in zip(shape_of(x)[-2:], sizes, strict=True)]
    if len(output) != 4 or any(size % count for size, count in zip(shape_of(x)[-2:], sizes, strict=True)):
        raise refused(node, "adaptive max-pooling is formulated for sizes that divide the image")
    names = t.graph.call_many("MaxPool", 2, t.full(x), kernel_shape=kernel, strides=kernel)
    return tuple(Value(found, output) for found in names)


def _adaptive_max_pool_backward(
    t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node, places: fx.Node
) -> Value:
    kernel = [size // count for size, count in zip(shape_of(x)[-2:], shape_of(dy)[-2:], strict=True)]
    return _max_pool_backward(t, node, dy, x, kernel, kernel, 0, 1, False, places)


def _matrix(along: AlongAxis, length: int) -> FloatArray:
    """[length, m]: the map of one axis, found by mapping every unit vector."""
    units = torch.eye(length, dtype=torch.float64)[:, None]  # [length, 1, length]
    return np.asarray(along(units)[:, 0].float().numpy())


def _mapped(t: Translation, x: fx.Node, maps: Sequence[AlongAxis], node: fx.Node) -> Value:
    """A map for each of the last axes."""
    shape = shape_of(x)
    if -1 in shape:
        raise refused(node)
    first = len(shape) - len(maps)
    matrices = [_matrix(along, shape[first + at]) for at, along in enumerate(maps)]
    return Value(_multiplied(t, t.full(x), matrices), shape_of(node))


def _mapped_back(t: Translation, dy: fx.Node, maps: Sequence[AlongAxis], node: fx.Node) -> Value:
    """The gradient of the same: the transposed matrices."""
    shape = shape_of(node)
    first = len(shape) - len(maps)
    matrices = [_matrix(along, shape[first + at]).T.copy() for at, along in enumerate(maps)]
    return Value(_multiplied(t, t.full(dy), matrices), shape)


def _multiplied(t: Translation, x: str, matrices: Sequence[FloatArray]) -> str:
    g = t.graph
    *before, last = matrices
    if not _is_identity(last):
        x = g.matmul(x, g.constant(last))
    if before and not _is_identity(before[0]):
        x = g.matmul(g.constant(before[0].T.copy()), x)
    return x


def _is_identity(matrix: FloatArray) -> bool:
    return matrix.shape[0] == matrix.shape[1] and bool((matrix == np.eye(len(matrix))).all())


def _average_maps(
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceiling: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> list[AlongAxis]:
    """What a window is divided by is the product of its sizes along both axes, unless one number is given for all."""

    def along(axis: int) -> AlongAxis:
        size, step = kernel[axis], (stride or kernel)[axis]
        pad = padding[axis] if len(padding) > 1 else padding[0]

        def average(line: Tensor) -> Tensor:
            # As an image of one column: the operator over lines takes no divisor.
            window = ((size, 1), (step, 1), (pad, 0), ceiling, count_padding)
            if divisor is None:
                return F.avg_pool2d(line[..., None], *window)[..., 0]
            return F.avg_pool2d(line[..., None], *window, divisor if axis == 0 else 1)[..., 0]

        return average

    return [along(axis) for axis in range(len(kernel))]


def _average_pool(t: Translation, node: fx.Node, x: fx.Node, *window: Sizes | bool | None) -> Value:
    return _mapped(t, x, _average_maps(*window), node)  # type: ignore[arg-type]


def _average_pool_backward(
    t: Translation, node: fx.Node, dy: fx.Node, _x: fx.Node, *window: Sizes | bool | None
) -> Value:
    return _mapped_back(t, dy, _average_maps(*window), node)  # type: ignore[arg-type]


def _adaptive_maps(sizes: Sequence[int]) -> list[AlongAxis]:
    def along(size: int) -> AlongAxis:
        return lambda line: F.adaptive_avg_pool1d(line, size)

    return [along(size) for size in sizes]


def _adaptive_average(t: Translation, node: fx.Node, x: fx.Node, sizes: Sequence[int]) -> Value:
    return _mapped(t, x, _adaptive_maps(sizes), node)


def _adaptive_average_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> Value:
    rank = len(shape_of(x)) - 2
    return _mapped_back(t, dy, _adaptive_maps(shape_of(dy)[-rank:]), node)


def _resampled(over_images: torch._ops.OpOverload, axes: int) -> Formulation:
    """Arguments: sizes, corners aligned (interpolation alone), scales."""

    def formulation(
        t: Translation, node: fx.Node, x: fx.Node, *given: Sequence[int] | bool | float | None
    ) -> Value:
        return _mapped(t, x, _resampling_maps(over_images, axes, given), node)

    return formulation


def _resampled_backward(over_images: torch._ops.OpOverload, axes: int) -> Formulation:
    def formulation(
        t: Translation,
        node: fx.Node,
        dy: fx.Node,
        sizes: Sequence[int],
        _input: Sequence[int],
        *given: bool | float | None,
    ) -> Value:
        return _mapped_back(t, dy, _resampling_maps(over_images, axes, (sizes, *given)), node)

    return formulation


def _resampling_maps(
    over_images: torch._ops.OpOverload, axes: int, given: Sequence[Sequence[int] | bool | float | None]
) -> list[AlongAxis]:
    """One axis of the operator over images, its other axis of one pixel."""
    sizes, *options = given
    assert isinstance(sizes, Sequence)
    corners = [options.pop(0)] if "align_corners" in str(over_images._schema) else []

    def along(axis: int) -> AlongAxis:
        scale = options[axis] if len(options) == axes else None

        def resample(line: Tensor) -> Tensor:
            mapped: Tensor = over_images(line[..., None], [sizes[axis], 1], *corners, scale, None)
            return mapped[..., 0]

        return resample

    return [along(axis) for axis in range(axes)]


_NEAREST, _EXACT = aten.upsample_nearest2d.default, aten._upsample_nearest_exact2d.default
_BILINEAR, _BICUBIC = aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.default

FORMULATIONS: dict[object, Formulation] = {
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.adaptive_max_pool2d.default: _adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: _adaptive_max_pool_backward,
    aten.avg_pool1d.default: _average_pool,
    aten.avg_pool2d.default: _average_pool,
    aten.avg_pool2d_backward.default: _average_pool_backward,
    aten.adaptive_avg_pool1d.default: _adaptive_average,
    aten._adaptive_avg_pool2d.default: _adaptive_average,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_average_backward,
    aten.upsample_nearest1d.default: _resampled(_NEAREST, 1),
    aten.upsample_nearest1d_backward.default: _resampled_backward(_NEAREST, 1),
    aten.upsample_linear1d.default: _resampled(_BILINEAR, 1),
    aten.upsample_linear1d_backward.default: _resampled_backward(_BILINEAR, 1),
    _NEAREST: _resampled(_NEAREST, 2),
    aten.upsample_nearest2d_backward.default: _resampled_backward(_NEAREST, 2),
    _EXACT: _resampled(_EXACT, 2),
    aten._upsample_nearest_exact2d_backward.default: _resampled_backward(_EXACT, 2),
    _BILINEAR: _resampled(_BILINEAR, 2),
    aten.upsample_bilinear2d_backward.default: _resampled_backward(_BILINEAR, 2),
    _BICUBIC: _resampled(_BICUBIC, 2),
    aten.upsample_bicubic2d_backward.default: _resampled_backward(_BICUBIC, 2),
}
