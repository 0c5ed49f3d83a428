"""Large activations that cost next to nothing are computed again in the backward pass, and not kept for it.

Memory between the passes is what phones run out of.  Two kinds of operators give much for little:

    pixels                           four bytes per number, again from the one that the image has
    large pointwise of few channels  the expansion of an early block, the largest tensor of MobileNetV3 by far

and only where what they read is there in the backward pass anyway.  The numbers are the same to the last bit.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from export.layers import label_of, set_label

MOST_CHANNELS = 16
"""Multiply-adds per number that are worth it: at 224 px and micro-batch 4, 12 of 77 MB for 1.7 % of the step's time."""
LEAST_BYTES = 4 << 20
"""Of a tensor; at 96 px it would be 2 MB, for as large a share of the time."""

fedss = torch.ops.fedss


def recompute(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The same program; changed in place."""
    graph = graph_module.graph
    position = {node: at for at, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if not _is_cheap(node):
            continue
        later = sorted((user for user in node.users if _in_backward(user)), key=position.__getitem__)
        if not later or not all(_is_there_anyway(source) for source in node.all_input_nodes):
            continue
        with graph.inserting_before(later[0]):
            again = graph.node_copy(node)
        label = label_of(node)
        assert label is not None
        set_label(again, label[0], backward=True)
        for user in later:
            user.replace_input_with(node, again)
    graph.lint()
    graph_module.recompile()
    return graph_module


def _is_cheap(node: fx.Node) -> bool:
    if node.target is fedss.pixels.default:
        return True
    if node.target is not fedss.pointwise.default:
        return False
    weight = node.args[1]
    assert isinstance(weight, fx.Node)
    numbers: int = math.prod(node.meta["val"].shape)
    channels: int = weight.meta["val"].shape[1]
    return channels <= MOST_CHANNELS and 4 * numbers >= LEAST_BYTES


def _in_backward(node: fx.Node) -> bool:
    label = label_of(node)
    return label is not None and label[1]


def _is_there_anyway(node: fx.Node) -> bool:
    """Inputs of the step always are; others where the backward pass reads them."""
    return node.op in ("placeholder", "get_attr") or any(_in_backward(user) for user in node.users)
