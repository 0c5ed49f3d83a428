"""The training step in standard ONNX operators, so that *stock* ONNX Runtime trains with it: no training build.

Walks the traced graph (`export.trace`) and writes every ATen operator in the form that `operators/table.py` has for it.

The number of a table's rows stays symbolic.  The micro-batch is static: the depthwise gradient and GroupNorm treat (example,
channel) planes as channels, and the runtime wants their number in the weights' shape.
"""

from __future__ import annotations

from torch import fx

from export.onnx.operators.table import formulation_of
from export.onnx.translation import Translation
from export.trace import trace_embed, trace_step
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, Bounds
from ondevice.model.train_step import TrainStep


def lower_step(step: TrainStep, bounds: Bounds) -> bytes:
    """step.onnx: the step's signature."""
    return lower_traced(trace_step(step, bounds[EXAMPLES]), step, bounds)


def lower_traced(traced: fx.GraphModule, step: TrainStep, bounds: Bounds) -> bytes:
    """The same, of a step that is traced already."""
    return _lower(traced, "train_step", step.signature.inputs, step.signature.outputs, bounds)


def lower_embed(step: TrainStep, bounds: Bounds) -> bytes:
    """embed.onnx: dense parameters and what the extractor takes -> embeddings."""
    traced = trace_embed(step, bounds[EXAMPLES])
    inputs = (*step.signature.dense, *step.signature.embedded)
    symbols = {symbol for spec in inputs for symbol in spec.symbols} | {EXAMPLES}
    return _lower(
        traced, "embed", inputs, ("embeddings",), {symbol: bounds[symbol] for symbol in sorted(symbols)}
    )


def _lower(
    traced: fx.GraphModule,
    name: str,
    specs: tuple[ArraySpec, ...],
    output_names: tuple[str, ...],
    bounds: Bounds,
) -> bytes:
    translation = Translation(traced, formulation_of)
    inputs = translation.name_inputs(specs)
    translation.run()
    outputs = translation.name_outputs(output_names)
    return translation.graph.serialise(
        name, inputs, outputs, {symbol: str(most) for symbol, most in bounds.items()}
    )
