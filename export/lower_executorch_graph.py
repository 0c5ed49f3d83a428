"""The joint ATen graph of `export.trace` rewritten to the operators of `ondevice/native`: the walk, and formulas made nodes.

Two things change, and the mathematics is not one of them.

*Layout.*  Activations and their gradients, [B, C, H, W] to torch, lie as planes [C, B, H, W], so that a 1x1 convolution and
both of its gradients are single matrix products.  Images keep the layout they arrive in.

*Nothing that is cheap to recompute is stored.*  While the rewrite walks the graph, what it knows of a tensor is often a
formula and not yet a node (`lower_executorch_formulas`).  Where an operator cannot read the formula it is materialised, once
in the forward pass and again in the backward pass, so that between the two only the outputs of the convolutions are kept.

Which operators a node becomes is the business of `lower_executorch_rules`.  One that touches no planes and has no rule is
copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import fx

from export.lower_executorch_formulas import (
    ON_PLANES,
    Gated,
    PerPlane,
    PlaneGradient,
    Planes,
    Transposed,
    Value,
)
from export.lower_executorch_operators import Activation
from export.unsupported_operator import UnsupportedOperator

aten = torch.ops.aten
fedss = torch.ops.fedss

Rule = Callable[..., Any]
"""(the rewrite, what is known of the node's arguments) -> what is known of the node, or NotImplemented to copy it."""


class Rewrite:
    """One walk over a traced graph.  Rules read `at`, the node in hand, and write with `emit`."""

    def __init__(self, traced: fx.GraphModule, rules: Mapping[Any, Rule]) -> None:
        self._traced = traced
        self._rules = rules
        self._graph = fx.Graph()
        self._known: dict[fx.Node, Any] = {}
        self._in_backward = False
        self._materialised: dict[tuple[Any, bool], fx.Node] = {}
        self.at: fx.Node = next(iter(traced.graph.nodes))

    def run(self) -> fx.GraphModule:
        nodes = list(self._traced.graph.nodes)
        outputs: Any = nodes[-1].args[0]
        first_output = outputs[0]
        while first_output.target is aten.detach.default:
            first_output = first_output.args[0]
        for node in nodes:
            self.at = node
            self._known[node] = self._translate(node)
            self._in_backward = self._in_backward or node is first_output  # the loss ends the forward pass
        self._graph.lint()
        self._graph.eliminate_dead_code()
        return fx.GraphModule(self._traced, self._graph)

    def _translate(self, node: fx.Node) -> Any:
        if node.op == "output":
            results: Any = node.args[0]
            return self._graph.output([self.plain(self._known[result]) for result in results])
        if node.op != "call_function":
            return self._graph.node_copy(node)
        if node.target is operator.getitem:
            outputs, at = node.args
            assert isinstance(outputs, fx.Node)
            return self._known[outputs][at]
        arguments = [self._known[given] if isinstance(given, fx.Node) else given for given in node.args]
        if node.target in self._rules:
            result = self._rules[node.target](self, *arguments)
            if result is not NotImplemented:
                return result
        if any(isinstance(argument, ON_PLANES) for argument in arguments):
            self.refuse()
        return self._graph.node_copy(node, lambda argument: self.plain(self._known[argument]))

    def refuse(self, why: str = "") -> NoReturn:
        raise UnsupportedOperator(
            f"the ExecuTorch lowering has no formulation for {self.at.target} {why or _described(self.at)}; "
            "add a rule to export/lower_executorch_rules.py, or export for another runtime"
        )

    def emit(self, target: Any, *arguments: Any) -> fx.Node:
        return self._graph.call_function(target, arguments)

    def is_newest(self, node: fx.Node) -> bool:
        """Whether nothing was written after it."""
        return node is next(reversed(self._graph.nodes))

    def contiguous(self, node: fx.Node) -> fx.Node:
        """Laid out as its shape says: the kernels know no strides."""
        return self._graph.call_function(
            aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
        )

    # From formulas to nodes.

    def plain(self, known: Any) -> fx.Node:
        """A node in torch's own layout."""
        if isinstance(known, Transposed):
            return self.contiguous(self.emit(aten.t.default, known.node))
        if not isinstance(known, fx.Node):
            self.refuse(f"on {known}")
        return known

    def planes(self, known: Any) -> fx.Node:
        """A node that lies as [C, B, H, W]."""
        if isinstance(known, Planes):
            return known.node
        if isinstance(known, Value):
            known = Gated(known, None)  # type: ignore[arg-type]  # no gate: `materialise` takes None for it
        if isinstance(known, Gated):
            key = (known, self._in_backward)
            if key not in self._materialised:
                self._materialised[key] = self.emit(
                    fedss.materialise.default, *known.value.arguments(), known.gate, None
                )
            return self._materialised[key]
        if isinstance(known, PerPlane):
            known = PlaneGradient(None, shift=known.vector)
        if isinstance(known, PlaneGradient):
            return self._spread(known)
        return self.refuse(f"on {known}")

    def _spread(self, gradient: PlaneGradient) -> fx.Node:
        """planes * scale + shift in ATen operators, where no kernel of ours takes the formula."""
        batch, channels, height, width = self.at.meta["val"].shape

        def as_planes(vector: fx.Node) -> fx.Node:
            turned = self.contiguous(self.emit(aten.t.default, vector))
            column = self.emit(aten.view.default, turned, [channels, batch, 1, 1])
            return self.contiguous(self.emit(aten.expand.default, column, [channels, batch, height, width]))

        result = gradient.planes
        if result is not None and gradient.scale is not None:
            result = self.emit(aten.mul.Tensor, result, as_planes(gradient.scale))
        if gradient.shift is None:
            assert result is not None
            return result
        shift = as_planes(gradient.shift)
        return shift if result is None else self.emit(aten.add.Tensor, result, shift)

    def gradient(self, known: Any) -> PlaneGradient:
        if isinstance(known, PlaneGradient):
            return known
        if isinstance(known, PerPlane):
            return PlaneGradient(None, shift=known.vector)
        return PlaneGradient(self.planes(known))

    def value_arguments(self, known: Any) -> tuple[Any, ...]:
        """x, moments, gamma, beta, activation: the formula itself if it is one, else the planes as they are."""
        if isinstance(known, Value):
            return known.arguments()
        return self.planes(known), None, None, None, int(Activation.NONE)


def shape_of(node: Any) -> tuple[int, ...]:
    """As it was traced."""
    return tuple(node.meta["val"].shape)


def _described(node: fx.Node) -> str:
    return "on " + ", ".join(
        str(list(shape_of(argument))) for argument in node.all_input_nodes if "val" in argument.meta
    )
