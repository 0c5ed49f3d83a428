"""What a traced graph computes from nothing but constants, computed once, at export: masks, positions, table look-ups."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from export.layers import copy_label

aten = torch.ops.aten

LARGEST = 1 << 22
"""Entries of a constant; what would be larger stays an operator."""

_SMALLER_AS_OPERATORS = (
    aten.full.default,
    aten.expand.default,
    aten.ones_like.default,
    aten.full_like.default,
)
"""A number or a few, repeated: known while other constants are computed, but not stored."""


def fold_constants(traced: fx.GraphModule, parameters: Collection[str]) -> None:
    """`parameters` are the `get_attr` targets that are not computed with."""
    nodes = list(traced.graph.nodes)
    known: dict[fx.Node, Any] = {}
    for node in nodes:
        if node.op == "get_attr" and node.target not in parameters:
            known[node] = getattr(traced, str(node.target))
        elif _is_constant(node, known):
            known[node] = _computed(node, known)
    stays = {node for node in nodes if node not in known}
    for node in reversed(nodes):
        if node in stays or stays.isdisjoint(node.users):
            continue
        if node.op == "get_attr" or node.target in _SMALLER_AS_OPERATORS:
            stays.add(node)
        else:
            _store(traced, node, known[node])
    traced.graph.eliminate_dead_code()


def unused_name(traced: fx.GraphModule, name: str) -> str:
    """The name for a new constant, numbered where it is taken."""
    candidate, number = name, 0
    while hasattr(traced, candidate):
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _is_constant(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    if node.op != "call_function" or any(argument not in known for argument in node.all_input_nodes):
        return False
    if node.target is operator.getitem:
        return True
    value = node.meta.get("val")
    return (
        isinstance(node.target, OpOverload)
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and all(isinstance(each, Tensor) and _is_small(each) for each in _each(value))
    )


def _is_small(value: Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape) and value.numel() <= LARGEST


def _each(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _computed(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    assert callable(node.target)
    arguments = fx.node.map_arg(node.args, known.__getitem__)
    keywords = fx.node.map_arg(node.kwargs, known.__getitem__)
    with torch.no_grad():
        return node.target(*arguments, **keywords)


def _store(traced: fx.GraphModule, node: fx.Node, value: Any) -> None:
    assert isinstance(value, Tensor), (
        f"{node.target} gives several values; its items are constants of their own"
    )
    name = unused_name(traced, f"constant_{node.name}")
    traced.register_buffer(name, value.detach().clone(memory_format=torch.contiguous_format))
    with traced.graph.inserting_before(node):
        constant = traced.graph.get_attr(name)
    copy_label(constant, node)
    mode: FakeTensorMode = node.meta["val"].fake_mode
    constant.meta["val"] = mode.from_tensor(getattr(traced, name), static_shapes=True)
    node.replace_all_uses_with(constant)
