"""The baseline: ExecuTorch's own joint-graph training export, unmodified, with its portable kernels.

It is what other federated stacks ship (and what `export.executorch.lowering` is compared with).  Weights live inside the
program, the width is fixed, and every convolution's gradient runs in a scalar reference kernel.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.export.experimental import _export_forward_backward

from export.trace import example_array
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.step_signature import Bounds
from ondevice.model.train_step import TrainStep


class _StepWithTables(nn.Module):
    """The step with its tables as parameters, as the joint export wants everything that learns."""

    def __init__(self, step: TrainStep, bounds: Bounds) -> None:
        super().__init__()
        self.step = step
        self.tables = nn.ParameterDict(
            {spec.name: nn.Parameter(example_array(spec, bounds)) for spec in step.signature.tables}
        )

    def forward(self, *data: Tensor) -> Tensor:
        """The signature's data but the tables, in its order."""
        given = iter(data)
        inputs = [
            self.tables[spec.name] if spec.role == "table" else next(given)
            for spec in self.step.signature.data
        ]
        loss: Tensor = self.step(*inputs)
        return loss


def lower_step(step: TrainStep, bounds: Bounds) -> bytes:
    """stock_step.pte: the data but the tables in; loss, gradients and the program's own parameters out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExecuTorch marks its own modules as experimental on import
        from executorch.exir import EdgeCompileConfig, to_edge

        example = tuple(example_array(spec, bounds) for spec in step.signature.data if spec.role != "table")
        joint = _export_forward_backward(
            torch.export.export(_StepWithTables(step, bounds), example, strict=True)
        )
        if any("max_pool2d" in str(node.target) for node in joint.graph.nodes):
            raise UnsupportedOperator(
                "executorch-stock: ExecuTorch's own max-pooling gradient is wrong (seen in 1.4.1 and 1.5.1); "
                "export for executorch, which has a kernel of ours for it, or for onnxruntime"
            )
        edge = to_edge(joint, compile_config=EdgeCompileConfig(_check_ir_validity=False))
        return bytes(edge.to_executorch().buffer)
