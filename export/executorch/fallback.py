"""What an operator without a formulation of ours becomes: ATen's own, run by ExecuTorch's kernels.

Some of those kernels are wrong, and what is left to them is refused by name instead.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import Target

from export.refusal import unsupported

aten = torch.ops.aten

WRONG: dict[Target, str] = {
    aten.max_pool2d_with_indices_backward.default: (
        "ExecuTorch's kernel returns wrong gradients (seen in 1.4.1 and 1.5.1)"
    ),
}
"""Kernels of ExecuTorch that may not be fallen back to, and why."""


def check_kernel(node: fx.Node) -> None:
    """That the operator's own kernel computes it."""
    if node.target in WRONG:
        raise unsupported(
            node,
            f"{WRONG[node.target]}, and these options have no kernel of ours: {list(node.args[2:-1])}",
            "export for onnxruntime, or change the layer",
        )


def works_on_planes(node: fx.Node) -> bool:
    """Whether it treats every number by itself, so that [C, B, H, W] is as good as [B, C, H, W]."""
    target, made = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return False
    if not isinstance(made, torch.Tensor) or made.dim() != 4:
        return False
    given = [made, *(argument.meta["val"] for argument in node.all_input_nodes)]
    return all(value.dim() in (0, 4) and value.dtype == torch.float32 for value in given)
