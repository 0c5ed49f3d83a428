"""Which lowering serves which runtime, and under which names its programs lie in the artifact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ondevice.backends.opening import Runtime
from ondevice.train_step import TrainStep


class CannotLower(ValueError):
    """A runtime has no formulation for an operator of the extractor; the message names it and says what to do."""


def lower(runtime: Runtime, step: TrainStep, micro_batch: int, max_width: int) -> dict[str, bytes]:
    """File name -> bytes.  The exporter of a runtime is imported only when an artifact is made for it."""
    if runtime in ("executorch", "executorch-stock"):
        from export import lower_executorch, lower_executorch_stock
        from export.lower_executorch_graph import UnsupportedOperator as UnsupportedByExecutorch

        with _refusing(UnsupportedByExecutorch):
            if runtime == "executorch-stock":
                return {"stock_step.pte": lower_executorch_stock.lower_step(step, micro_batch, max_width)}
            return {
                "step.pte": lower_executorch.lower_step(step, micro_batch, max_width),
                "embed.pte": lower_executorch.lower_embed(step, micro_batch),
            }
    from export import lower_onnx, lower_ort_training
    from export.onnx_operators import UnsupportedOperator as UnsupportedByOnnx

    with _refusing(UnsupportedByOnnx):
        if runtime == "onnxruntime-training":
            files = lower_ort_training.lower(step, micro_batch, max_width)
            return {f"ort_training/{name}": data for name, data in files.items()}
        return {
            "step.onnx": lower_onnx.lower_step(step, micro_batch, max_width),
            "embed.onnx": lower_onnx.lower_embed(step, micro_batch),
        }


@contextmanager
def _refusing(unsupported: type[Exception]) -> Iterator[None]:
    try:
        yield
    except unsupported as error:
        raise CannotLower(str(error)) from error
