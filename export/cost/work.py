"""How much a call of an operator has to compute: multiply-adds of products and convolutions, elements of all others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ondevice.contract.artifacts.program_calls import OperatorCall
from ondevice.contract.step_signature import Bounds

Sizes = Sequence[tuple[int, ...]]


def multiply_adds(call: OperatorCall, values: Bounds) -> int:
    """At so many rows; 0 for an operator that is neither a product nor a convolution."""
    name = call.operator.removeprefix("fedss::").removeprefix("grid_").partition(".")[0]
    sizes = call.sizes(values)
    if not call.operator.startswith("fedss::"):
        return 0
    if name == "product":
        # [rows, depth] or its transpose times what has as many columns as the result, which is the last matrix.
        return math.prod(sizes[0]) * [size for size in sizes if len(size) == 2][-1][1]
    if name.partition("_")[0] in ("pointwise", "convolution", "depthwise"):
        return _convolution(name, [size for size in sizes if len(size) == 4])
    return 0


def elements(call: OperatorCall, values: Bounds) -> int:
    """Of the largest tensor that it reads or writes."""
    return max((math.prod(size) for size in call.sizes(values)), default=0)


def _convolution(name: str, sizes: Sizes) -> int:
    """Every weight meets every pixel of the output planes [C, B, H, W], or of their gradient, once."""
    if name.endswith("weight_gradient"):
        planes, weight = sizes[0], sizes[-1]
    elif name.endswith("input_gradient"):
        planes, weight = sizes[0], sizes[1]
    else:
        _, weight, planes = sizes[:3]
    return math.prod(weight) * math.prod(planes[1:])
