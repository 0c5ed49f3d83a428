"""Long sums in two stages.

The runtime adds one number after the other, so that a sum of thousands of numbers, as the gradient of a bias is one, loses
digits that eager float32 keeps: it adds up parts, and then the parts.  What is reduced along several axes is reduced along
the longest first; a single long axis is folded into two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

OF_PARTS = {"ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceL1", "ReduceL2"}
"""Those that may be taken of parts of one size, and then of the results."""
LONG = 128
"""Above so many numbers that are added one after the other; shorter sums would cost time for nothing."""
LANES = 8
"""Along the last axis the runtime adds up so many sums side by side."""
FEWEST_PARTS = 8

Integers = Callable[..., str]
"""Gives the name of a constant."""


def in_stages(
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, Sequence[int]],
    constants: Mapping[str, npt.NDArray[np.generic]],
    integers: Integers,
) -> list[onnx.NodeProto]:
    """The nodes, with parts before those that add up much.  `shapes`: of the values whose shape is known."""
    written: list[onnx.NodeProto] = []
    for node in nodes:
        if node.op_type in OF_PARTS and node.input[0] in shapes:
            shape = shapes[node.input[0]]
            axes = [int(axis) % len(shape) for axis in constants[node.input[1]]]
            if parts := list(_parts(node, shape, axes, integers)):
                written += parts
                whole = onnx.NodeProto()
                whole.CopyFrom(node)
                whole.input[0] = parts[-1].output[0]
                node = whole
        written.append(node)
    return written


def _parts(
    node: onnx.NodeProto, shape: Sequence[int], axes: Sequence[int], integers: Integers
) -> Iterator[onnx.NodeProto]:
    """What makes parts of the node's input, if anything; they have its number of axes."""
    numbers = math.prod(shape[axis] for axis in axes)
    most = LONG * LANES if len(shape) - 1 in axes else LONG
    if numbers <= most:
        return
    longest = max(axes, key=lambda axis: (shape[axis], axis))
    length, count = shape[longest], _count(shape[longest])
    source, name = node.input[0], f"{node.name}/parts"
    if length > most and count >= FEWEST_PARTS:
        folded = (*shape[:longest], count, length // count, *shape[longest + 1 :])
        yield helper.make_node("Reshape", [source, integers(*folded)], [f"{name}:folded"])
        inner = [f"{name}:folded", integers(longest + 1)]
        yield helper.make_node(node.op_type, inner, [f"{name}:0"], name=name, keepdims=0)
    elif length < numbers:
        inner = [source, integers(longest)]
        yield helper.make_node(node.op_type, inner, [f"{name}:0"], name=name, keepdims=1)


def _count(length: int) -> int:
    """Parts of one size, about as many as each has numbers."""
    return max(count for count in range(1, math.isqrt(length) + 1) if length % count == 0)
