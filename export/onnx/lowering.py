"""The training step in standard ONNX operators, so that *stock* ONNX Runtime trains with it: no training build.

Walks the traced graph (`export.trace`) and writes every ATen operator in the form that `onnx_operators` has for it.

The width m stays symbolic.  The micro-batch is static: the depthwise gradient and the one-pass GroupNorm treat
(example, channel) planes as channels, and the runtime wants their number in the weights' shape.
"""

from __future__ import annotations

from torch import fx

from export.onnx.operators.table import formulation_of
from export.onnx.translation import Translation
from export.trace import step_inputs, step_outputs, trace_embed, trace_step
from ondevice.model.train_step import TrainStep


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
    translation = Translation(traced, formulation_of)
    inputs = translation.name_inputs(input_names)
    translation.run()
    outputs = translation.name_outputs(output_names)
    return translation.graph.serialise(name, inputs, outputs, metadata)
