"""The official ONNX Runtime training artifacts: training, eval and optimizer model, and checkpoint.

ONNX Runtime differentiates by itself, so it gets the forward pass (`export.trace.trace_loss`) in operators that it knows the
gradient of; GroupNorm, hardswish, hardsigmoid and logsumexp are written out for that.  The official generator builds
the four files.

The generator ties the trainable tensors to fixed shapes, but the rows of a table must vary in number.  So tables are not
among them: they are user inputs that require a gradient, and the accumulator which the generator then adds for each, and
which only a parameter can have, is replaced by a plain output `gradient/TABLE`.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import torch
from onnx import helper
from torch import fx

from export.onnx.graph import IR_VERSION
from export.onnx.operators.group_norm import row_means
from export.onnx.operators.table import formulation_of
from export.onnx.translation import Formulation, Translation, Value, refused, shape_of
from export.trace import trace_loss
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.step_signature import EXAMPLES, Bounds, gradient_of
from ondevice.model.train_step import TrainStep

MODELS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx")
CHECKPOINT = "checkpoint"

aten = torch.ops.aten


def lower(step: TrainStep, bounds: Bounds) -> dict[str, bytes]:
    """File name -> bytes of the official files; there is no optimizer model where nothing but the tables learns.

    The training model takes the signature's data and gives loss, embeddings and the gradient of every table; the other
    gradients stay in the runtime's buffers.
    """
    from onnxruntime.training import artifacts

    forward = _forward_model(step, bounds[EXAMPLES])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        try:
            with _without_log():
                artifacts.generate_artifacts(
                    forward,
                    requires_grad=list(step.signature.trained),
                    optimizer=artifacts.OptimType.SGD if step.trainable else None,
                    artifact_directory=directory,
                )
        except RuntimeError as error:
            # The runtime's last sentence names the operator.
            reason = str(error).strip().splitlines()[-1]
            raise UnsupportedOperator(
                f"ONNX Runtime's training cannot differentiate the model: {reason}; export for onnxruntime instead, whose "
                "backward pass is ours, or add the operator to DIFFERENTIABLE in export/onnx/training_artifacts.py"
            ) from error
        models = {name: onnx.load(directory / name) for name in MODELS if (directory / name).exists()}
        files = {CHECKPOINT: (directory / CHECKPOINT).read_bytes()}
    for at, table in enumerate(step.signature.table_dims):
        _return_gradient(models["training_model.onnx"], table, place=2 + at)
    for name, model in models.items():
        model.ir_version = IR_VERSION  # the generator stamps the newest that the onnx package knows
        helper.set_model_props(model, {symbol: str(most) for symbol, most in bounds.items()})
        files[name] = model.SerializeToString()
    return files


@contextmanager
def _without_log() -> Iterator[None]:
    """The generator's native part reports every graph transformation on stderr, at a level that nothing can set."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _forward_model(step: TrainStep, micro_batch: int) -> onnx.ModelProto:
    """The forward pass with the trainable tensors as initializers of the graph."""
    translation = Translation(trace_loss(step, micro_batch), _differentiable_formulation_of)
    ports = translation.name_inputs(step.signature.inputs)
    translation.run()
    outputs = translation.name_outputs(("loss", "embeddings"))
    for name, tensor in zip(step.trainable, step.trainable_tensors(), strict=True):
        translation.graph.initialise(name, tensor.detach().numpy())
    data_ports = ports[len(step.trainable) :]
    return onnx.load_from_string(translation.graph.serialise("loss", data_ports, outputs, {}))


def _return_gradient(model: onnx.ModelProto, table: str, place: int) -> None:
    """Replace the accumulator of a table's gradient by an output, after loss and embeddings."""
    graph = model.graph
    computed = f"{table}_grad"  # the generator's name
    accumulator = next(
        node for node in graph.node if computed in node.input and node.op_type.startswith("InPlace")
    )
    graph.node.remove(accumulator)
    graph.input.remove(_port(graph.input, accumulator.input[0]))
    graph.output.remove(_port(graph.output, accumulator.output[0]))
    output = onnx.ValueInfoProto()
    output.CopyFrom(_port(graph.input, table))
    output.name = gradient_of(table)
    graph.node.append(helper.make_node("Identity", [computed], [output.name]))
    graph.output.insert(place, output)


def _port(ports: Iterable[onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    return next(port for port in ports if port.name == name)


def _group_norm(
    t: Translation, node: fx.Node, x: fx.Node, scale: fx.Node | None, shift: fx.Node | None, *numbers: float
) -> tuple[Value, ...]:
    """`numbers`: ATen's N, C, H·W, groups and epsilon."""
    g, shape = t.graph, shape_of(x)
    groups, epsilon = int(numbers[3]), numbers[4]
    if scale is None or shift is None or len(shape) != 4:
        raise refused(node, "GroupNorm is formulated for images, with a weight and a bias")
    rows, length = (shape[0], groups), math.prod(shape[1:]) // groups
    centred = g.subtract(g.reshape(t.full(x), *rows, length), row_means(g, t.full(x), rows, length))
    variance = row_means(g, g.multiply(centred, centred), rows, length)
    normed = g.call("Div", centred, g.call("Sqrt", g.add(variance, g.number(epsilon))))
    scaled = g.multiply(g.reshape(normed, *shape), g.reshape(t.full(scale), -1, 1, 1))
    return (Value(g.add(scaled, g.reshape(t.full(shift), -1, 1, 1)), shape),)


def _hardsigmoid(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    g = t.graph
    line = g.add(g.multiply(t.full(x), g.number(1 / 6)), g.number(0.5))
    return Value(g.call("Clip", line, g.number(0), g.number(1)), shape_of(node))


def _hardswish(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.multiply(t.full(x), _hardsigmoid(t, node, x).name), shape_of(node))


def _reciprocal_root(t: Translation, node: fx.Node, x: fx.Node) -> Value:
    return Value(t.graph.call("Div", t.graph.number(1), t.graph.call("Sqrt", t.full(x))), shape_of(node))


def _logsumexp(t: Translation, node: fx.Node, x: fx.Node, axes: list[int]) -> Value:
    """x − LogSoftmax(x) is logsumexp(x) in every place, but rounds badly where a class is excluded.  The average of the
    places, weighted by Softmax(x), leaves those out and changes neither the value nor its gradient."""
    if len(axes) != 1:
        raise refused(node)
    g, name, axis = t.graph, t.full(x), axes[0]
    everywhere = g.subtract(name, g.call("LogSoftmax", name, axis=axis))
    return Value(g.sum(g.multiply(g.call("Softmax", name, axis=axis), everywhere), axis), shape_of(node))


DIFFERENTIABLE: dict[object, Formulation] = {
    aten.native_group_norm.default: _group_norm,
    aten.hardsigmoid.default: _hardsigmoid,
    aten.hardswish.default: _hardswish,
    aten.rsqrt.default: _reciprocal_root,
    aten.logsumexp.default: _logsumexp,
}
"""Operators whose usual formulation ONNX Runtime cannot differentiate."""


def _differentiable_formulation_of(node: fx.Node) -> Formulation:
    return DIFFERENTIABLE.get(node.target) or formulation_of(node)
