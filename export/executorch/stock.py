"""The baseline: ExecuTorch's own joint-graph training export, unmodified, with its portable kernels.

It is what other federated stacks ship (and what `export.executorch.lowering` is compared with).  Weights live inside the
program, the width is fixed, and every convolution's gradient runs in a scalar reference kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.export.experimental import _export_forward_backward

from export.trace import example_array, trace_loss
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.step_signature import EXAMPLES, Bounds
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
        loss: Tensor = self.step(*self.inputs(data))
        return loss

    def inputs(self, data: Sequence[Tensor]) -> list[Tensor]:
        given = iter(data)
        return [
            self.tables[spec.name] if spec.role == "table" else next(given)
            for spec in self.step.signature.data
        ]


class _WithNoise(_StepWithTables):
    """The forward pass as `export.trace` has it: the joint export would write down dropout itself, and not its noise."""

    def __init__(self, step: TrainStep, bounds: Bounds) -> None:
        super().__init__(step, bounds)
        self.traced = trace_loss(step, bounds[EXAMPLES])

    def forward(self, *data: Tensor) -> Tensor:
        loss: Tensor = self.traced(*self.step.trainable_tensors(), *self.inputs(data))[0]
        return loss


def lower_step(step: TrainStep, bounds: Bounds) -> bytes:
    """stock_step.pte: the data but the tables in; loss, gradients and the program's own parameters out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExecuTorch marks its own modules as experimental on import
        from executorch.exir import EdgeCompileConfig, to_edge

        example = tuple(example_array(spec, bounds) for spec in step.signature.data if spec.role != "table")
        noisy = bool(step.signature.noise)
        model = _WithNoise(step, bounds) if noisy else _StepWithTables(step, bounds)
        joint = _export_forward_backward(torch.export.export(model, example, strict=not noisy))
        if any("max_pool2d" in str(node.target) for node in joint.graph.nodes):
            raise UnsupportedOperator(
                "executorch-stock: ExecuTorch's own max-pooling gradient is wrong (seen in 1.4.1 and 1.5.1); "
                "export for executorch, which has a kernel of ours for it, or for onnxruntime"
            )
        edge = to_edge(joint, compile_config=EdgeCompileConfig(_check_ir_validity=False))
        return bytes(edge.to_executorch().buffer)
