"""The order of nodes in the file, by which ONNX Runtime keeps as little alive as it can.

The runtime does not run nodes as they stand in the file.  It searches from the nodes that nobody reads, the last one first,
and of the inputs of a node it takes the last one first, too.  Where ∂w stand beside ∂x in the order of the trace, it thus
begins with the gradient of the first layer: all ∂x are computed, then all ∂w, and every activation lives until its ∂w.

Here the results stand at the end and in reverse, so that the search begins with the loss and goes on to the gradients of the
last layer, then to the layer before it: ∂w follow right behind the ∂y that they are made of.

What the backward pass makes of activations alone (a slope, say) stands right behind these.  The search meets it after the ∂y
that it is multiplied with, at the latest moment; behind ∂y in the file it would be computed first, before all layers that
follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx


def ordered(nodes: Sequence[onnx.NodeProto], result: str) -> list[onnx.NodeProto]:
    """The same nodes.  `result` is the value that ends the forward pass."""
    producers = {value: at for at, node in enumerate(nodes) for value in node.output}
    forward = ancestors(nodes, result)
    read = {value for node in nodes for value in node.input}
    latest: list[int] = []
    for at, node in enumerate(nodes):
        inputs = (latest[producers[value]] for value in node.input if value in producers)
        latest.append(at if at in forward else max(inputs, default=0))
    inner = [at for at, node in enumerate(nodes) if read.intersection(node.output)]
    ends = [at for at, node in enumerate(nodes) if not read.intersection(node.output)]
    return [nodes[at] for at in [*sorted(inner, key=lambda at: (latest[at], at)), *reversed(ends)]]


def ancestors(nodes: Sequence[onnx.NodeProto], result: str) -> set[int]:
    """Positions of the nodes that the value is made of."""
    producers = {value: at for at, node in enumerate(nodes) for value in node.output}
    found: set[int] = set()
    waiting = [result]
    while waiting:
        at = producers.get(waiting.pop())
        if at is not None and at not in found:
            found.add(at)
            waiting.extend(nodes[at].input)
    return found
