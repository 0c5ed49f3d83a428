"""The joint ATen graph of `export.trace` rewritten to the operators of `ondevice/native`: the walk, and formulas made nodes.

Two things change, and the mathematics is not one of them.

*Layout.*  Activations and their gradients, [B, C, H, W] to torch, lie as planes [C, B, H, W], so that a 1x1 convolution and
both of its gradients are single matrix products.  Images keep the layout they arrive in.

*Nothing that is cheap to recompute is stored.*  While the rewrite walks the graph, what it knows of a tensor is often a
formula and not yet a node (`formulas.py`).  Where an operator cannot read the formula it is materialised, once
in the forward pass and again in the backward pass, so that between the two only the outputs of the convolutions are kept.

Which operators a node becomes is the business of `rules/`.  One without a rule, or whose rule cannot take its arguments,
is left to ATen's own operator (`fallback.py`): over planes as they lie where it treats every number by itself, else with its
arguments turned back to torch's layout.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from torch import fx
from torch.fx.node import Target

from export.executorch.fallback import check_kernel, works_on_planes
from export.executorch.formulas import (
    COPIED,
    ON_PLANES,
    Activation,
    Copied,
    Gated,
    Given,
    GradientTimesValue,
    OnPlanes,
    PerPlane,
    PlaneGradient,
    Planes,
    Result,
    Shape,
    ThroughActivation,
    Transposed,
    Value,
    ValueArguments,
)
from export.layers import copy_label
from export.refusal import place_of
from export.unsupported_operator import UnsupportedOperator

aten = torch.ops.aten
fedss = torch.ops.fedss

Rule = Callable[..., Result | Copied]
"""(the rewrite, what is known of the node's arguments) -> what is known of the node, or `COPIED`."""
SPREAD_OUT = tuple(kind for kind in ON_PLANES if kind is not PerPlane)
"""What lies as planes; a vector that is only seen as planes is as near to torch's layout."""
READS_POSITIONS = (aten.embedding_dense_backward.default,)
"""Operators whose rules take positions; elsewhere those are torch's, as masks are."""
Argument = fx.Node | int | float | bool | str | torch.memory_format | None | Sequence["Argument"]
"""What an emitted operator takes."""


class NoFormulation(UnsupportedOperator):
    """A rule cannot take what it was given; ATen's own operator may."""


class Rewrite:
    """One walk over a traced graph.  Rules read `at`, the node in hand, and write with `emit`."""

    def __init__(self, traced: fx.GraphModule, rules: Mapping[Target, Rule]) -> None:
        self._traced = traced
        self._rules = rules
        self._graph = fx.Graph()
        self._known: dict[fx.Node, Result] = {}
        self._in_backward = False
        self._materialised: dict[tuple[OnPlanes, bool], fx.Node] = {}
        self._turned: dict[tuple[OnPlanes | fx.Node, bool], fx.Node] = {}
        self.frozen: dict[tuple[object, ...], Value] = {}
        """BatchNorms of the forward pass, by what they normalise."""
        self.at: fx.Node = next(iter(traced.graph.nodes))

    def run(self) -> fx.GraphModule:
        nodes = list(self._traced.graph.nodes)
        first_output = _outputs(nodes[-1])[0]
        for node in nodes:
            self.at = node
            self._known[node] = self._translate(node)
            self._in_backward = self._in_backward or node is first_output  # the loss ends the forward pass
        self._graph.lint()
        self._graph.eliminate_dead_code()
        return fx.GraphModule(self._traced, self._graph)

    def _translate(self, node: fx.Node) -> Result:
        if node.op == "output":
            results = [self.plain(self._known[result]) for result in _outputs(node)]
            return self._graph.create_node("output", "output", (results,))
        if node.op != "call_function":
            return self._graph.node_copy(node)
        if node.target is operator.getitem:
            return self._item(node)
        result = self._ruled(node)
        return _with_shape(self._copied(node) if isinstance(result, Copied) else result, node)

    def _ruled(self, node: fx.Node) -> Result | Copied:
        rule = self._rules.get(node.target)
        if rule is None or not _takes(rule, node.kwargs):
            return COPIED
        # Positions that a rule left out are read by nobody.
        floats = all(self._known[given] is None or _is_float(given) for given in node.all_input_nodes)
        if not floats and node.target not in READS_POSITIONS:
            return COPIED
        try:
            return rule(self, *(self._given(argument) for argument in node.args), **node.kwargs)
        except NoFormulation:
            return COPIED  # what the rule has written by then is read by nobody, and dropped

    def _copied(self, node: fx.Node) -> Result:
        """ATen's own operator."""
        check_kernel(node)
        knowns = [self._known[argument] for argument in node.all_input_nodes]
        if any(isinstance(known, SPREAD_OUT) for known in knowns) and works_on_planes(node):
            return Planes(self._graph.node_copy(node, self._planes_of_traced))
        copied = self._graph.node_copy(node, lambda argument: self.plain(self._known[argument]))
        if (
            copied.target is aten.view.default
        ):  # what was a view of the traced strides need not be one of ours
            copied.target = aten.reshape.default
        return copied

    def _planes_of_traced(self, argument: fx.Node) -> fx.Node:
        known = self._known[argument]
        if not shape_of(argument):  # a number that is computed
            return self.plain(known)
        assert not isinstance(known, tuple)
        return self.planes(known)

    def _item(self, node: fx.Node) -> Result:
        outputs, at = node.args
        assert isinstance(outputs, fx.Node)
        known = self._known[outputs]
        if isinstance(known, fx.Node):  # of an operator that was copied
            return self._graph.node_copy(node, lambda _: known)
        assert isinstance(known, tuple)
        assert isinstance(at, int)
        return known[at]

    def _given(self, argument: object) -> Given:
        """A node's argument as its rule gets it."""
        if isinstance(argument, fx.Node):
            known = self._known[argument]
            if isinstance(known, tuple):
                self.refuse(f"on all outputs of {argument.target} at once")
            return known
        if isinstance(argument, (list, tuple)):
            return [self._given(each) for each in argument]
        if argument is None or isinstance(argument, (int, float)):
            return argument
        return self.refuse(f"with {argument}")

    def refuse(self, why: str = "") -> NoReturn:
        raise NoFormulation(
            f"the ExecuTorch lowering has no formulation for {self.at.target} {why or _described(self.at)}, "
            f"at {place_of(self.at)}; "
            "add a rule to export/executorch/rules/planes.py, or export for another runtime"
        )

    def emit(self, target: Callable[..., object], *arguments: Argument, **keywords: Argument) -> fx.Node:
        """An operator of the layer in hand, which is also where a formula of an earlier layer is made a node."""
        node = self._graph.call_function(target, arguments, keywords)  # type: ignore[arg-type]
        copy_label(node, self.at)
        return node

    def is_newest(self, node: fx.Node) -> bool:
        """Whether nothing was written after it."""
        return node is next(reversed(self._graph.nodes))

    def contiguous(self, node: fx.Node) -> fx.Node:
        """Laid out as its shape says: the kernels know no strides."""
        return self.emit(aten.clone.default, node, memory_format=torch.contiguous_format)

    # From formulas to nodes.

    def plain(self, known: Given | Result) -> fx.Node:
        """A node in torch's own layout."""
        if isinstance(known, fx.Node):
            return known
        if isinstance(known, Transposed):
            return self.emit(fedss.permute.default, known.node, [1, 0] if known.rank == 2 else [0, 2, 1])
        if isinstance(known, PerPlane):
            pixels = self.emit(aten.reshape.default, known.vector, [*known.shape[:2], 1, 1])
            spread = known.shape[2:] != (1, 1)
            return self.emit(aten.expand.default, pixels, list(known.shape)) if spread else pixels
        if not isinstance(known, ON_PLANES):
            self.refuse(f"on {_named(known)} ({_described(self.at)})")
        return self._turn(known, self.planes(known))

    def _turn(self, known: OnPlanes | fx.Node, node: fx.Node) -> fx.Node:
        """[C, B, H, W] <-> [B, C, H, W], once in the forward pass and once in the backward pass."""
        key = (known, self._in_backward)
        if key not in self._turned:
            self._turned[key] = self.emit(fedss.permute.default, node, [1, 0, 2, 3])
        return self._turned[key]

    def planes(self, known: Given) -> fx.Node:
        """A node that lies as [C, B, H, W]."""
        match known:
            case Planes():
                return known.node
            case Value():
                return self._materialise(Gated(known, None))
            case Gated() | ThroughActivation() | GradientTimesValue():
                return self._materialise(known)
            case PerPlane():
                return self._spread(PlaneGradient(None, known.shape, shift=known.vector))
            case PlaneGradient():
                return self._spread(known)
            case fx.Node() if "val" in known.meta and known.meta["val"].dim() == 4:
                return self._turn(known, known)
        return self.refuse(f"on {_named(known)} ({_described(self.at)})")

    def _materialise(self, known: Gated | ThroughActivation | GradientTimesValue) -> fx.Node:
        """Once in the forward pass and once in the backward pass."""
        key = (known, self._in_backward)
        if key not in self._materialised:
            self._materialised[key] = self._write(known)
        return self._materialised[key]

    def _write(self, known: Gated | ThroughActivation | GradientTimesValue) -> fx.Node:
        match known:
            case Gated(value, gate):
                return self.emit(fedss.materialise.default, *value.arguments(), gate, None)
            case ThroughActivation(gradient, value):
                before = self.planes(replace(value, activation=Activation.NONE))
                arguments = (self._spread(gradient), before, int(value.activation))
                return self.emit(fedss.activation_gradient.default, *arguments)
            case GradientTimesValue(planes, value):
                return self.emit(aten.mul.Tensor, planes, self.planes(value))

    def _spread(self, gradient: PlaneGradient) -> fx.Node:
        """planes * scale + shift in ATen operators, where no kernel of ours takes the formula."""
        batch, channels, height, width = gradient.shape

        def as_planes(vector: fx.Node) -> fx.Node:
            turned = self.emit(fedss.permute.default, vector, [1, 0])
            column = self.emit(aten.view.default, turned, [channels, batch, 1, 1])
            if height == width == 1:
                return column
            return self.contiguous(self.emit(aten.expand.default, column, [channels, batch, height, width]))

        result = gradient.planes
        if result is not None and gradient.scale is not None:
            result = self.emit(aten.mul.Tensor, result, as_planes(gradient.scale))
        if gradient.shift is None:
            assert result is not None
            return result
        shift = as_planes(gradient.shift)
        return shift if result is None else self.emit(aten.add.Tensor, result, shift)

    def vector(self, known: Given, shape: Shape) -> fx.Node:
        """[B, C] of what is one number per plane: a formula that says so, or planes of one pixel."""
        if isinstance(known, PerPlane):
            return known.vector
        batch, channels, height, width = shape
        assert height == width == 1, shape
        if isinstance(known, fx.Node):
            return self.emit(aten.reshape.default, known, [batch, channels])
        turned = self.emit(aten.view.default, self.planes(known), [channels, batch])
        return self.emit(fedss.permute.default, turned, [1, 0])

    def gradient(self, known: Given, shape: Shape) -> PlaneGradient:
        if isinstance(known, PlaneGradient):
            return known
        if isinstance(known, PerPlane):
            return PlaneGradient(None, known.shape, shift=known.vector)
        return PlaneGradient(self.planes(known), shape)

    def value_arguments(self, known: Given) -> ValueArguments:
        """x, moments, gamma, beta, activation: the formula itself if it is one, else the planes as they are."""
        if isinstance(known, Value):
            return known.arguments()
        return self.planes(known), None, None, None, int(Activation.NONE)


def shape_of(node: object) -> Shape:
    """As it was traced; a number has none."""
    return tuple(node.meta["val"].shape) if isinstance(node, fx.Node) else ()


def _is_float(node: fx.Node) -> bool:
    """Numbers as our kernels take them; an operator with several outputs is not looked into."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.dtype == torch.float32


def _with_shape(result: Result, traced: fx.Node) -> Result:
    """For `shape_of`: a node that a rule wrote has none yet."""
    node = result.node if isinstance(result, Planes) else result
    if isinstance(node, fx.Node):
        node.meta.setdefault("val", traced.meta["val"])
    return result


def _outputs(output: fx.Node) -> list[fx.Node]:
    (results,) = output.args
    assert isinstance(results, (list, tuple))
    return [result for result in results if isinstance(result, fx.Node)]


def _takes(rule: Rule, keywords: Mapping[str, object]) -> bool:
    """Whether a rule knows what all the keywords mean: one that does not may not ignore them."""
    return not keywords or set(keywords) <= set(inspect.signature(rule).parameters)


def _named(known: object) -> str:
    return known.name if isinstance(known, fx.Node) else type(known).__name__


def _described(node: fx.Node) -> str:
    shapes = [
        str(list(argument.meta["val"].shape))
        for argument in node.all_input_nodes
        if isinstance(argument.meta.get("val"), torch.Tensor)
    ]
    keywords = "".join(f", {name}={value}" for name, value in node.kwargs.items())
    return f"on {', '.join(shapes)}{keywords}"
