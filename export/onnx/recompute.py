"""Activations that a few passes over another one make are computed again in the backward pass, and not kept for it.

A convolution is followed by a norm and an activation.  The backward pass reads the results of all three, and parts of the
activation's formula besides: all of one size, and made of the convolution's by operators that go over it once.  So it alone
is kept.

A value is computed again where it is made, by such operators alone, of *one* value that is there anyway.  Of several it
might be the sum of two branches, each of them made of others in turn, and the network would be computed again from its
beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx
from onnx import helper

from export.onnx.order import ancestors

LEAST_NUMBERS = 1 << 18
"""In a value that is worth it."""

ONE_PASS = frozenset(
    (
        *("Abs", "Add", "BatchNormalization", "Cast", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid"),
        *("LeakyRelu", "Max", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu", "Reshape", "Sigmoid"),
        *("Softplus", "Sqrt", "Sub", "Tanh", "ThresholdedRelu"),
    )
)
"""Operators that read every number once and write as many."""

Shapes = Mapping[str, Sequence[int]]
"""Of the values whose shape is known."""


def recomputed(
    nodes: Sequence[onnx.NodeProto], result: str, shapes: Shapes, integers: Callable[..., str]
) -> list[onnx.NodeProto]:
    """The nodes, and copies of some before those of the backward pass that read them.  `result` ends the forward pass;
    `integers` gives the name of a constant."""
    forward = ancestors(nodes, result)
    origins = _origins(nodes, forward, shapes)
    producers = {value: node for at, node in enumerate(nodes) if at in forward for value in node.output}
    copies: dict[str, str] = {}
    written: list[onnx.NodeProto] = []

    def again(value: str) -> str:
        """The name of the copy, or of the value itself where it is kept."""
        if value in copies or value not in origins:
            return copies.get(value, value)
        if origins[value] == value:
            # To the shape that it has: this costs nothing, and keeps the runtime from seeing that the copies are copies.
            node = helper.make_node("Reshape", [value, integers(*shapes[value])], [f"{value}/again"])
        else:
            node = onnx.NodeProto()
            node.CopyFrom(producers[value])
            node.name += "/again"
            node.input[:] = [again(source) for source in node.input]
            node.output[:] = [f"{name}/again" for name in node.output]
        written.append(node)
        copies[value] = node.output[0]
        return copies[value]

    for at, node in enumerate(nodes):
        made = {source for source in node.input if origins.get(source, source) != source}
        if at not in forward and made:
            reader = onnx.NodeProto()
            reader.CopyFrom(node)
            reader.input[:] = [again(source) if source in made else source for source in node.input]
            node = reader
        written.append(node)
    return written


def _origins(nodes: Sequence[onnx.NodeProto], forward: set[int], shapes: Shapes) -> dict[str, str]:
    """Large values -> the one value that is there in the backward pass and that they are made of, perhaps themselves."""
    produced = {value for node in nodes for value in node.output}
    wanted = {value for at, node in enumerate(nodes) if at not in forward for value in node.input}
    # Inputs and constants are always there.
    origins = {value: value for value in shapes if value not in produced and _is_large(value, shapes)}
    for at in sorted(forward):
        node = nodes[at]
        large = [value for value in node.input if _is_large(value, shapes)]
        found = {origins.get(value, "") for value in large}
        for value in node.output:
            if not _is_large(value, shapes):
                continue
            if node.op_type in ONE_PASS and len(found) == 1 and "" not in found:
                origins[value] = found.pop()
                if node.op_type != "Reshape" or origins[value] not in large:
                    continue
            # Another shape of a value that is kept is kept, too.
            if value in wanted:
                origins[value] = value
    return origins


def _is_large(value: str, shapes: Shapes) -> bool:
    return value in shapes and math.prod(shapes[value]) >= LEAST_NUMBERS
