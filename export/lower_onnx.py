"""The training step in standard ONNX operators, so that *stock* ONNX Runtime trains with it: no training build.

Walks the traced graph (`export.trace`) and writes every ATen operator in the form that `onnx_operators` has for it.

The width m stays symbolic.  The micro-batch is static: the depthwise gradient and the one-pass GroupNorm treat
(example, channel) planes as channels, and the runtime wants their number in the weights' shape.
"""

from __future__ import annotations

import torch
from torch import fx

from export.onnx_graph import Port
from export.onnx_operators import FORMULATIONS, Translation, UnsupportedOperator, Value, shape_of
from export.trace import step_inputs, step_outputs, trace_embed, trace_step
from ondevice.train_step import TrainStep


def lower_step(step: TrainStep, micro_batch: int, max_width: int) -> bytes:
    """step.onnx: trainable tensors, columns, adjust, images, labels, example_weight -> loss, gradients."""
    traced = trace_step(step, micro_batch)
    metadata = {"micro_batch": str(micro_batch), "max_width": str(max_width)}
    return _lower(traced, "train_step", step_inputs(step), step_outputs(step), metadata)


def lower_embed(step: TrainStep, micro_batch: int) -> bytes:
    """embed.onnx: trainable tensors, images -> embeddings."""
    traced = trace_embed(step, micro_batch)
    metadata = {"micro_batch": str(micro_batch)}
    return _lower(traced, "embed", (*step.trainable, "images"), ("embeddings",), metadata)


def _lower(
    traced: fx.GraphModule,
    name: str,
    input_names: tuple[str, ...],
    output_names: tuple[str, ...],
    metadata: dict[str, str],
) -> bytes:
    translation = Translation()
    nodes = list(traced.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    inputs = [
        Port(port, _port_shape(node), integer=node.meta["val"].dtype == torch.int64)
        for port, node in zip(input_names, placeholders, strict=True)
    ]
    for port, node in zip(inputs, placeholders, strict=True):
        translation.emitted[node] = Value(port.name, shape_of(node))
    for node in nodes:
        translation.graph.scope = node.name
        if node.op == "get_attr":
            frozen = getattr(traced, node.target).numpy()
            translation.emitted[node] = Value(translation.graph.constant(frozen), frozen.shape)
        elif node.op == "call_function":
            if node.target not in FORMULATIONS:
                raise UnsupportedOperator(
                    f"the model uses {node.target} (at {node.name}), which has no ONNX formulation; add one to "
                    "FORMULATIONS in export/onnx_operators.py, or write the model without it"
                )
            translation.emitted[node] = FORMULATIONS[node.target](translation, node, *node.args)
    (results,) = nodes[-1].args
    outputs = [
        (Port(port, _port_shape(node)), translation.full(node))
        for port, node in zip(output_names, results, strict=True)
    ]
    return translation.graph.serialise(name, inputs, outputs, metadata)


def _port_shape(node: fx.Node) -> tuple[int | str, ...]:
    return tuple("width" if size == -1 else size for size in shape_of(node))
