"""What a training scope costs beside training everything: numbers that travel, multiply-adds, activations in memory.

Read off the traced step, which has no backward operator for what does not learn.  The memory is that of every tensor that
is alive at once, as the graph stands: a runtime's plan is lower, but goes with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from export.trace import trace_step
from ondevice.contract.step_signature import EXAMPLES, Bounds
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.bmm.default, aten.addmm.default)
_SAME_MEMORY = frozenset(
    ("view", "reshape", "t", "permute", "unsqueeze", "squeeze", "expand", "slice", "select")
)


@dataclass(frozen=True)
class ScopeCost:
    """Of one step, in one direction of the wire."""

    parameters: int
    """Numbers of the dense parameters that learn."""
    multiply_adds: int
    activation_bytes: int


def scope_cost(step: TrainStep, bounds: Bounds) -> ScopeCost:
    graph = trace_step(step, bounds[EXAMPLES]).graph
    rows = max((size for symbol, size in bounds.items() if symbol != EXAMPLES), default=1)
    return ScopeCost(
        sum(math.prod(shape) for shape in step.signature.dense_shapes.values()),
        sum(_multiply_adds(node, rows) for node in graph.nodes),
        _peak_bytes(graph, rows),
    )


def explain_scope(step: TrainStep, bounds: Bounds) -> str | None:
    """The scope beside `all`, in one sentence; None where everything learns."""
    if step.spec.train == "all":
        return None
    everything = replace(step.spec, train="all")
    full = scope_cost(TrainStep(everything, build_extractor(everything)), bounds)
    own = scope_cost(step, bounds)
    return (
        f"train {step.spec.train}: {own.parameters:,} parameters travel ({full.parameters:,} with all), "
        f"{own.multiply_adds / 1e6:.1f} million multiply-adds per step ({full.multiply_adds / 1e6:.1f}), "
        f"{own.activation_bytes / 1e6:.1f} MB alive at once ({full.activation_bytes / 1e6:.1f})"
    )


def _multiply_adds(node: fx.Node, rows: int) -> int:
    if node.target in _PRODUCTS:
        left = node.args[-2]
        assert isinstance(left, fx.Node)
        return _numel(node.meta["val"], rows) * _sizes(left.meta["val"], rows)[-1]
    if node.target is aten.convolution.default:
        _x, weight = (_value(argument) for argument in node.args[:2])
        transposed = bool(node.args[6])
        planes = _x if transposed else node.meta["val"]
        return _numel(planes, rows) * weight.numel() // weight.shape[0]
    if node.target is aten.convolution_backward.default:
        gradient, x, weight = (_value(argument) for argument in node.args[:3])
        planes = x if node.args[7] else gradient
        wanted = node.args[10]
        assert isinstance(wanted, Sequence)
        products = sum(map(bool, wanted[:2]))
        return products * _numel(planes, rows) * weight.numel() // weight.shape[0]
    return 0


def _peak_bytes(graph: fx.Graph, rows: int) -> int:
    """Of what operators made: inputs and outputs are the caller's, constants the program's."""
    last_read: dict[fx.Node, int] = {}
    for at, node in enumerate(graph.nodes):
        for argument in node.all_input_nodes:
            last_read[_owner(argument)] = at
    alive = peak = 0
    freed: dict[int, int] = {}
    for at, node in enumerate(graph.nodes):
        if node.op == "call_function" and _owner(node) is node:
            size = _bytes(node.meta.get("val"), rows)
            alive += size
            end = last_read.get(node, at)
            freed[end] = freed.get(end, 0) + size
        peak = max(peak, alive)
        alive -= freed.get(at, 0)
    return peak


def _owner(node: fx.Node) -> fx.Node:
    """The node whose memory this one looks at."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        if getattr(node.target, "__name__", "").partition(".")[0] not in (*_SAME_MEMORY, "getitem"):
            break
        node = node.args[0]
    return node


def _value(argument: Any) -> Tensor:
    value: Tensor = argument.meta["val"]
    return value


def _bytes(value: Any, rows: int) -> int:
    if isinstance(value, (tuple, list)):
        return sum(_bytes(each, rows) for each in value)
    return _numel(value, rows) * value.element_size() if isinstance(value, Tensor) else 0


def _numel(value: Tensor, rows: int) -> int:
    return math.prod(_sizes(value, rows))


def _sizes(value: Tensor, rows: int) -> list[int]:
    """The number of a table's rows is the one size that varies."""
    return [rows if isinstance(size, torch.SymInt) else int(size) for size in value.shape]
