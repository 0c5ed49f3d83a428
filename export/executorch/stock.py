"""The baseline: ExecuTorch's own joint-graph training export, unmodified, with its portable kernels.

It is what other federated stacks ship (and what `export.executorch.lowering` is compared with).  Weights live inside the
program, the width is fixed, and every convolution's gradient runs in a scalar reference kernel.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.export.experimental import _export_forward_backward

from export.unsupported_operator import UnsupportedOperator
from ondevice.model.train_step import TrainStep


class _StepWithColumns(nn.Module):
    """The step with its columns as a parameter, as the joint export wants everything that learns."""

    def __init__(self, step: TrainStep, width: int) -> None:
        super().__init__()
        self.step = step
        self.columns = nn.Parameter(torch.zeros(width, step.spec.column_dim))

    def forward(self, adjust: Tensor, images: Tensor, labels: Tensor, example_weight: Tensor) -> Tensor:
        loss: Tensor = self.step(self.columns, adjust, images, labels, example_weight)
        return loss


def lower_step(step: TrainStep, micro_batch: int, width: int) -> bytes:
    """stock_step.pte: adjust, images, labels and weights in; loss, gradients and the program's own parameters out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExecuTorch marks its own modules as experimental on import
        from executorch.exir import EdgeCompileConfig, to_edge  # type: ignore[import-untyped]

        example = (
            torch.zeros(width),
            torch.zeros(micro_batch, *step.spec.image_shape),
            torch.zeros(micro_batch, dtype=torch.int64),
            torch.zeros(micro_batch),
        )
        joint = _export_forward_backward(
            torch.export.export(_StepWithColumns(step, width), example, strict=True)
        )
        if any("max_pool2d" in str(node.target) for node in joint.graph.nodes):
            raise UnsupportedOperator(
                "executorch-stock: ExecuTorch's own max-pooling gradient is wrong (seen in 1.4.1 and 1.5.1); "
                "export for executorch, which has a kernel of ours for it, or for onnxruntime"
            )
        edge = to_edge(joint, compile_config=EdgeCompileConfig(_check_ir_validity=False))
        return bytes(edge.to_executorch().buffer)
