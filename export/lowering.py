"""Which lowering serves which runtime, and under which names its programs lie in the artifact."""

from __future__ import annotations

from export.lengths import of_length
from ondevice.backends.opening import Runtime
from ondevice.contract.artifacts.lengths import Lengths, folder_of
from ondevice.contract.artifacts.program_calls import STEP_CALLS
from ondevice.contract.step_signature import Bounds
from ondevice.model.train_step import TrainStep


def lower_lengths(
    runtime: Runtime, step: TrainStep, lengths: Lengths | None, bounds: Bounds
) -> dict[str, bytes]:
    """The programs of the longest texts under their plain names, and of every shorter length in its folder."""
    files = lower(runtime, step, bounds)
    if lengths is None:
        return files
    for size in lengths.shorter:
        programs = lower(runtime, of_length(step, lengths, size), bounds)
        files |= {f"{folder_of(size)}/{name}": data for name, data in programs.items()}
    return files


def lower(runtime: Runtime, step: TrainStep, bounds: Bounds) -> dict[str, bytes]:
    """File name -> bytes.  The exporter of a runtime is imported only when an artifact is made for it.

    Raises UnsupportedOperator where the runtime has no formulation for an operator of the model.
    """
    if runtime == "executorch":
        from export.executorch import lowering as lower_executorch

        program = lower_executorch.lower_step(step, bounds)
        return {
            "step.pte": program.data,
            STEP_CALLS: program.calls.to_bytes(),
            "embed.pte": lower_executorch.lower_embed(step, bounds),
        }
    if runtime == "executorch-stock":
        from export.executorch import stock as lower_executorch_stock

        return {"stock_step.pte": lower_executorch_stock.lower_step(step, bounds)}
    if runtime == "onnxruntime":
        from export.onnx import lowering as lower_onnx

        return {
            "step.onnx": lower_onnx.lower_step(step, bounds),
            "embed.onnx": lower_onnx.lower_embed(step, bounds),
        }
    from export.onnx import training_artifacts as lower_ort_training

    files = lower_ort_training.lower(step, bounds)
    return {f"ort_training/{name}": data for name, data in files.items()}
