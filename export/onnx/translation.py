"""Turning a traced graph into an ONNX graph, node by node; which operators a node becomes, `operators/table.py` says.

A node that the table does not have, or not with these arguments, is written as torch itself decomposes it
(`decomposition.py`); only where that fails too is it refused, with the table's words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from onnx import helper
from torch import fx

from export.onnx.decomposition import decomposed
from export.onnx.graph import GraphBuilder, Port
from export.refusal import unsupported
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.step_signature import ArraySpec

WITHOUT_EFFECT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit"})
"""Keywords that say where and how torch keeps a value, not what it is."""

NUMPY_TYPES: dict[torch.dtype, type[np.generic]] = {
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
"""The types that ONNX Runtime has kernels for; a step in double precision would be none for a phone."""

Operand = fx.Node | float


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
        self._write_nodes(self._traced)

    def _write_nodes(self, traced: fx.GraphModule) -> None:
        for node in traced.graph.nodes:
            self.graph.scope = node.name
            if node.op == "get_attr":
                frozen = getattr(traced, str(node.target)).numpy()
                self.emitted[node] = Value(self.graph.constant(frozen), frozen.shape)
            elif node.op == "call_function":
                self.emitted[node] = self._formulated(node)

    def _formulated(self, node: fx.Node) -> Emitted:
        try:
            return self._written(node)
        except UnsupportedOperator as error:
            parts = decomposed(node)
            if parts is None:
                raise
            try:
                values = self._inlined(*parts)
                return values if isinstance(node.meta["val"], tuple | list) else values[0]  # type: ignore[return-value]
            except UnsupportedOperator as inner:
                raise error from inner

    def _inlined(self, part: fx.GraphModule, arguments: Sequence[fx.Node]) -> tuple[Value | None, ...]:
        """The nodes of a decomposition in place of the node that it stands for."""
        placeholders = [node for node in part.graph.nodes if node.op == "placeholder"]
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self.emitted[placeholder] = self.emitted[argument]
        self._write_nodes(part)
        (results,) = part.graph.output_node().args
        each = results if isinstance(results, tuple | list) else (results,)
        return tuple(cast(Value, self.emitted[item]) if isinstance(item, fx.Node) else None for item in each)

    def _written(self, node: fx.Node) -> Emitted:
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

    def compact(self, node: fx.Node) -> Value:
        """The value in a shape that may still have to be broadcast."""
        value = self.emitted[node]
        assert isinstance(value, Value), f"{node} has several outputs"
        if isinstance(node.meta["val"], torch.SymInt):
            raise refused(node, "the number of rows can only be used as a size")
        return value

    def operand(self, operand: Operand, dtype: torch.dtype) -> Value:
        """The compact value in a type: torch promotes silently, ONNX never.  A number becomes a constant."""
        if not isinstance(operand, fx.Node):
            return Value(self.graph.constant(np.array(operand, NUMPY_TYPES[dtype])), ())
        value = self.compact(operand)
        return Value(self.cast(value.name, dtype_of(operand), dtype), value.shape)

    def cast(self, value: str, present: torch.dtype, wanted: torch.dtype) -> str:
        if present == wanted:
            return value
        return self.graph.call(
            "Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY_TYPES[wanted]))
        )

    def elementwise(
        self, operator_name: str, *operands: Operand | Value, dtype: torch.dtype = torch.float32
    ) -> Value:
        """An operator whose operands broadcast, all of them of one type."""
        values = [
            operand if isinstance(operand, Value) else self.operand(operand, dtype) for operand in operands
        ]
        shape = broadcast(*(value.shape for value in values))
        return Value(self.graph.call(operator_name, *(value.name for value in values)), shape)

    def choose(self, condition: Value, left: Value, right: Value, dtype: torch.dtype) -> Value:
        """`left` where the condition holds, else `right`; the runtime's Where takes no booleans."""
        if dtype != torch.bool:
            return self.elementwise("Where", condition, left, right)
        otherwise = self.elementwise("And", self.elementwise("Not", condition), right)
        return self.elementwise("Or", self.elementwise("And", condition, left), otherwise)

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
    return unsupported(
        node,
        f"with ({', '.join(arguments)}), {why}",
        "extend its formulation in export/onnx/operators, or write the model without it",
    )


def dtype_of(node: fx.Node) -> torch.dtype:
    """The traced type; refused where the runtime has no kernels for it."""
    dtype: torch.dtype = node.meta["val"].dtype
    if dtype not in NUMPY_TYPES:
        raise refused(node, f"{dtype} has no ONNX formulation")
    return dtype


def constant_of(t: Translation, node: fx.Node, numbers: npt.ArrayLike) -> str:
    """Numbers as a constant of the node's type."""
    return t.graph.constant(np.array(numbers, NUMPY_TYPES[dtype_of(node)]))


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The traced shape, -1 where symbolic."""
    return tuple(-1 if isinstance(size, torch.SymInt) else int(size) for size in node.meta["val"].shape)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(shape) for shape in shapes)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True))
