"""Long sums in two stages.

The runtime adds one number after the other, so that a sum of thousands of numbers, as the gradient of a bias is one, loses
digits that eager float32 keeps: it adds up parts, and then the parts.  What is reduced along several axes is reduced along
the longest first; a single long axis is folded into two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

OF_PARTS = {"ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceL1", "ReduceL2"}
"""Those that may be taken of parts of one size, and then of the results."""
LONG = 1024
"""Above so many numbers; shorter sums would cost time for nothing."""
FEWEST_PARTS = 8

Shape = Sequence[int | None]
"""None where symbolic."""


def split_long_sums(model: onnx.ModelProto) -> None:
    """In place."""
    shapes = _shapes(onnx.shape_inference.infer_shapes(model).graph)
    axes_of = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT64
    }
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type in OF_PARTS and node.input[0] in shapes:
            shape = shapes[node.input[0]]
            axes = [int(axis) % len(shape) for axis in axes_of[node.input[1]]]
            model.graph.node.extend(_parts(model.graph, node, shape, axes))
        model.graph.node.append(node)


def _parts(
    graph: onnx.GraphProto, node: onnx.NodeProto, shape: Shape, axes: Sequence[int]
) -> Iterator[onnx.NodeProto]:
    """What comes before the node, which is given the parts instead of the numbers."""
    lengths = {axis: length for axis in axes if (length := shape[axis]) is not None}
    if len(lengths) < len(axes) or math.prod(lengths.values()) <= LONG:
        return
    longest = max(lengths, key=lambda axis: (lengths[axis], axis))
    length, name = lengths[longest], f"{node.name}/parts"
    count = _count(length)
    if length > LONG and count >= FEWEST_PARTS and shape.count(None) <= 1:
        folded = [-1 if size is None else size for size in shape]
        folded[longest : longest + 1] = [count, length // count]
        yield helper.make_node(
            "Reshape", [node.input[0], _constant(graph, name, "shape", folded)], [f"{name}:folded"]
        )
        inner = [f"{name}:folded", _constant(graph, name, "axes", [longest + 1])]
        yield helper.make_node(node.op_type, inner, [name], name=name, keepdims=0)
    elif length < math.prod(lengths.values()):
        inner = [node.input[0], _constant(graph, name, "axes", [longest])]
        yield helper.make_node(node.op_type, inner, [name], name=name, keepdims=1)
    else:
        return
    node.input[0] = name


def _count(length: int) -> int:
    """Parts of one size, about as many as each has numbers."""
    return max(count for count in range(1, math.isqrt(length) + 1) if length % count == 0)


def _constant(graph: onnx.GraphProto, owner: str, what: str, values: Sequence[int]) -> str:
    name = f"{owner}:{what}"
    graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    return name


def _shapes(graph: onnx.GraphProto) -> Mapping[str, Shape]:
    """Of the values in float32 whose number of axes is known."""
    return {
        value.name: [
            axis.dim_value if axis.HasField("dim_value") else None
            for axis in value.type.tensor_type.shape.dim
        ]
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        and value.type.tensor_type.HasField("shape")
    }
