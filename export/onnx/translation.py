"""Turning a traced graph into an ONNX graph, node by node; which operators a node becomes, `operators/table.py` says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from export.onnx.graph import GraphBuilder, Port
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.step_signature import ArraySpec

WITHOUT_EFFECT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit"})
"""Keywords that say where and how torch keeps a value, not what it is."""


@dataclass(frozen=True)
class Value:
    """A value of the ONNX graph and its shape, -1 where symbolic (only the number of a table's rows is).

    The shape may be one that merely *broadcasts* to that of the traced value: an `expand` costs a pass over memory,
    and most of its readers (Mul, Add) would do it for free.
    """

    name: str
    shape: tuple[int, ...]


Emitted = Value | tuple[Value | None, ...]
Formulation = Callable[..., Emitted]


class Translation:
    """A traced graph, the ONNX graph made from it, and what every node became."""

    def __init__(self, traced: fx.GraphModule, formulation_of: Callable[[fx.Node], Formulation]) -> None:
        self.graph = GraphBuilder()
        self.emitted: dict[fx.Node, Emitted] = {}
        self._traced = traced
        self._formulation_of = formulation_of
        self._symbols: dict[str, _Symbol] = {}
        """By what the trace calls them."""

    def name_inputs(self, specs: Sequence[ArraySpec]) -> list[Port]:
        """The placeholders are these inputs."""
        ports = []
        placeholders = [node for node in self._traced.graph.nodes if node.op == "placeholder"]
        for spec, node in zip(specs, placeholders, strict=True):
            for axis, (size, traced) in enumerate(zip(spec.shape, node.meta["val"].shape, strict=True)):
                if isinstance(traced, torch.SymInt):
                    # The last input with the symbol stays: a side array where there is one, which takes no gradient, unlike
                    # its table.
                    self._symbols[str(traced)] = _Symbol(str(size), spec.name, axis)
            ports.append(Port(spec.name, self._port_shape(node), spec.dtype))
            self.emitted[node] = Value(spec.name, shape_of(node))
        return ports

    def run(self) -> None:
        """Write every node in the form that there is for it."""
        for node in self._traced.graph.nodes:
            self.graph.scope = node.name
            if node.op == "get_attr":
                frozen = getattr(self._traced, str(node.target)).numpy()
                self.emitted[node] = Value(self.graph.constant(frozen), frozen.shape)
            elif node.op == "call_function":
                self.emitted[node] = self._formulated(node)

    def _formulated(self, node: fx.Node) -> Emitted:
        """An argument that the formulation does not know is refused: ignored, it would be a wrong gradient."""
        formulation = self._formulation_of(node)
        keywords = {name: value for name, value in node.kwargs.items() if name not in WITHOUT_EFFECT}
        try:
            inspect.signature(formulation).bind(self, node, *node.args, **keywords)
        except TypeError as error:
            raise refused(node) from error
        return formulation(self, node, *node.args, **keywords)

    def name_outputs(self, names: Sequence[str]) -> list[tuple[Port, str]]:
        """Call the results by these names."""
        results = cast(Sequence[fx.Node], self._traced.graph.output_node().args[0])
        return [
            (Port(name, self._port_shape(node)), self.full(node))
            for name, node in zip(names, results, strict=True)
        ]

    def full(self, node: fx.Node) -> str:
        """The value in the shape that the trace says."""
        value = self.compact(node)
        if value.shape == shape_of(node):
            return value.name
        return self.graph.call("Expand", value.name, self.sizes(node))

    def compact(self, node: fx.Node | float) -> Value:
        """The value in a shape that may still have to be broadcast; a number becomes a constant."""
        if isinstance(node, int | float):
            return Value(self.graph.number(node), ())
        value = self.emitted[node]
        assert isinstance(value, Value), f"{node} has several outputs"
        if isinstance(node.meta["val"], torch.SymInt):
            raise refused(node, "the number of rows can only be used as a size")
        return value

    def elementwise(self, operator_name: str, *operands: fx.Node | float | Value) -> Value:
        values = [operand if isinstance(operand, Value) else self.compact(operand) for operand in operands]
        shape = _broadcast(*(value.shape for value in values))
        return Value(self.graph.call(operator_name, *(value.name for value in values)), shape)

    def sizes(self, node: fx.Node) -> str:
        """The traced shape as a value, [rank]."""
        shape = node.meta["val"].shape
        if not any(isinstance(size, torch.SymInt) for size in shape):
            return self.graph.integers(*shape)
        return self.graph.call("Concat", *(self._size(node, size) for size in shape), axis=0)

    def _size(self, node: fx.Node, size: int | torch.SymInt) -> str:
        """One size as a value, [1]: the number of a table's rows is read off an input."""
        if not isinstance(size, torch.SymInt):
            return self.graph.integers(size)
        symbol = self._symbol(node, size)
        return self.graph.call("Shape", symbol.input_name, start=symbol.axis, end=symbol.axis + 1)

    def _symbol(self, node: fx.Node, size: torch.SymInt) -> _Symbol:
        if str(size) not in self._symbols:
            raise refused(node, f"its size {size} is not the number of a table's rows")
        return self._symbols[str(size)]

    def _port_shape(self, node: fx.Node) -> tuple[int | str, ...]:
        return tuple(
            self._symbol(node, size).name if isinstance(size, torch.SymInt) else int(size)
            for size in node.meta["val"].shape
        )


@dataclass(frozen=True)
class _Symbol:
    """The number of a table's rows: its name in the signature, and the input and axis that have it."""

    name: str
    input_name: str
    axis: int


def refused(
    node: fx.Node, why: str = "the ONNX formulation does not know these arguments"
) -> UnsupportedOperator:
    """The named error for an operator that is in the table, but not with what this node gives it."""
    arguments = [str(argument) for argument in node.args]
    arguments += [f"{name}={value}" for name, value in node.kwargs.items()]
    return UnsupportedOperator(
        f"the model uses {node.target} (at {node.name}) with ({', '.join(arguments)}): {why}; extend the formulation "
        "that export/onnx/operators/table.py has for it, or write the model without it"
    )


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The traced shape, -1 where symbolic."""
    return tuple(-1 if isinstance(size, torch.SymInt) else int(size) for size in node.meta["val"].shape)


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(shape) for shape in shapes)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True))
