"""The rare tail: a node without a formulation as a graph of simpler operators, by torch's own decompositions.

Node by node, and only where the table of formulations has nothing: decomposing everything would double the graph, and what
is frequent is faster in a formulation of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

from export.layers import copy_label


def decomposed(node: fx.Node) -> tuple[fx.GraphModule, Sequence[fx.Node]] | None:
    """The graph of one node, and the nodes that its placeholders stand for; None where torch has no simpler form."""
    rule = _table().get(node.target)
    tensors = [
        argument for argument in node.all_input_nodes if isinstance(argument.meta.get("val"), FakeTensor)
    ]
    if rule is None or not tensors:
        return None

    def run(values: list[Tensor]) -> Any:
        given = dict(zip(tensors, values, strict=True))

        def value_of(argument: fx.Node) -> Any:
            return given[argument] if argument in given else argument.meta["val"]

        return rule(*fx.map_arg(node.args, value_of), **fx.map_arg(node.kwargs, value_of))

    mode = tensors[0].meta["val"].fake_mode
    try:
        with mode, enable_python_dispatcher(), torch.no_grad():
            part = make_fx(run)([tensor.meta["val"] for tensor in tensors])
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        # Torch's rules raise any of these for arguments that they were not written for: the node is refused by name then.
        return None
    if any(inner.target is node.target for inner in part.graph.nodes):
        return None
    for inner in part.graph.nodes:
        copy_label(inner, node)
    return part, tensors


@cache
def _table() -> dict[object, Any]:
    """All that torch has, and of two forms the one in core operators."""
    return {**decomposition_table, **core_aten_decompositions()}
