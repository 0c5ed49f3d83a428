"""An ONNX graph under construction: operators of the standard domain, constants, and their bytes.

A value is its name.  Every call that repeats an earlier one (same operator, inputs, attributes) gives the
earlier value, so a formulation may ask for `transpose(x)` wherever it needs it and pays once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from export.onnx.long_sums import in_stages
from export.onnx.order import ordered
from export.onnx.recompute import recomputed

OPSET = 18
IR_VERSION = 8
"""What the oldest runtime we support (onnxruntime-training-cpu 1.19.2: opset 21, IR 10) and every newer one read."""

Attribute = int | float | str | Sequence[int]
Dimension = int | str


@dataclass(frozen=True)
class Port:
    """An input or output of the graph; a dimension that is a string is symbolic."""

    name: str
    shape: tuple[Dimension, ...]
    dtype: str = "float32"


class GraphBuilder:
    """Collects nodes in the order in which they are called."""

    def __init__(self) -> None:
        self.scope = ""
        """Prefix of the node names: a runtime's profile then says which part of the step a node belongs to."""
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], tuple[str, npt.NDArray[np.generic]]] = {}
        self._tensors: dict[str, npt.NDArray[np.generic]] = {}
        self._seen: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._transposed: dict[str, tuple[str, tuple[int, ...]]] = {}
        """What a value is the transpose of, and by which order of axes."""

    def call(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """The only output of an operator."""
        return self.call_many(operator, 1, *inputs, **attributes)[0]

    def call_many(
        self, operator: str, outputs: int, *inputs: str, **attributes: Attribute
    ) -> tuple[str, ...]:
        """The first outputs of an operator that has several."""
        key = (operator, outputs, inputs, str(sorted(attributes.items())))
        if key not in self._seen:
            name = f"{self.scope}/{operator}_{len(self._nodes)}"
            values = tuple(f"{name}:{position}" for position in range(outputs))
            node = helper.make_node(operator, inputs, values, name=name)
            node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
            self._nodes.append(node)
            self._seen[key] = values
        return self._seen[key]

    def constant(self, array: npt.NDArray[np.generic]) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = (f"constant_{len(self._constants)}", array)
        return self._constants[key][0]

    def initialise(self, name: str, array: npt.NDArray[np.generic]) -> None:
        """Store a tensor in the model under its own name, also where another has the same contents."""
        self._tensors[name] = array

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def integer(self, value: int) -> str:
        return self.constant(np.array(value, np.int64))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, left: str, right: str) -> str:
        return self.call("Add", left, right)

    def subtract(self, left: str, right: str) -> str:
        return self.call("Sub", left, right)

    def multiply(self, left: str, right: str) -> str:
        return self.call("Mul", left, right)

    def matmul(self, left: str, right: str) -> str:
        return self.call("MatMul", left, right)

    def reshape(self, value: str, *shape: int) -> str:
        return self.call("Reshape", value, self.integers(*shape))

    def transpose(self, value: str, *order: int) -> str:
        """Two in a row are one, or none."""
        if value in self._transposed:
            value, first = self._transposed[value]
            order = tuple(first[axis] for axis in order)
        if order == tuple(range(len(order))):
            return value
        result = self.call("Transpose", value, perm=order)
        self._transposed[result] = value, order
        return result

    def sum(self, value: str, *axes: int, keep: bool = False) -> str:
        return self.call("ReduceSum", value, self.integers(*axes), keepdims=int(keep))

    def slice(self, value: str, axis: int, start: int, end: int, step: int = 1) -> str:
        bounds = (self.integers(start), self.integers(end), self.integers(axis), self.integers(step))
        return self.call("Slice", value, *bounds)

    def serialise(
        self,
        name: str,
        inputs: Sequence[Port],
        outputs: Sequence[tuple[Port, str]],
        metadata: Mapping[str, str],
    ) -> bytes:
        """The finished model.  Each output is a port and the value that leaves through it."""
        result = outputs[0][1]
        nodes = _needed(self._nodes, {value for _, value in outputs})
        shapes = _shapes(self._model(name, inputs, outputs, nodes))
        nodes = in_stages(nodes, shapes, dict(self._constants.values()), self.integers)
        nodes = ordered(recomputed(nodes, result, shapes, self.integers), result)
        model = self._model(name, inputs, outputs, nodes)
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model)
        encoded: bytes = model.SerializeToString(deterministic=True)
        return encoded

    def _model(
        self,
        name: str,
        inputs: Sequence[Port],
        outputs: Sequence[tuple[Port, str]],
        nodes: Sequence[onnx.NodeProto],
    ) -> onnx.ModelProto:
        results = [helper.make_node("Identity", [value], [port.name]) for port, value in outputs]
        read = {value for node in (*nodes, *results) for value in node.input}
        graph = helper.make_graph(
            [*nodes, *results],
            name,
            [_value_info(port) for port in inputs],
            [_value_info(port) for port, _ in outputs],
            [
                numpy_helper.from_array(array, key)
                for key, array in [*self._tensors.items(), *self._constants.values()]
                if key in read
            ],
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="fedss-mobile",
        )


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Of every value that has one, symbols aside."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    known: dict[str, tuple[int, ...]] = {}
    for value in (*graph.input, *graph.value_info):
        sizes = value.type.tensor_type.shape.dim
        if all(size.HasField("dim_value") for size in sizes):
            known[value.name] = tuple(size.dim_value for size in sizes)
    return known | {constant.name: tuple(constant.dims) for constant in graph.initializer}


def _value_info(port: Port) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
    return helper.make_tensor_value_info(port.name, kind, port.shape)


def _needed(nodes: Sequence[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """The nodes that the wanted values depend on, in the same order."""
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted = wanted.union(node.input)
            kept.append(node)
    return kept[::-1]
