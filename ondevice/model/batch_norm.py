"""BatchNorm, by a stated policy: over a batch it would mix examples, and micro-batches would no longer be exact.

frozen   the statistics are constants; scale and bias learn.  For weights that were trained somewhere.
group    GroupNorm in its place, with 8 groups or the most below that divide the channels; scale and bias carry over.
         For fresh weights, whose statistics say nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ondevice.contract.vocabulary import BatchNormPolicy

MOST_GROUPS = 8


class GroupedNorm(nn.GroupNorm):
    """GroupNorm under the name of a BatchNorm, then what that one did besides (activations, in some networks)."""

    def __init__(self, norm: _BatchNorm) -> None:
        channels = norm.num_features
        groups = next(count for count in range(MOST_GROUPS, 0, -1) if channels % count == 0)
        super().__init__(groups, channels, norm.eps, norm.affine)
        if norm.affine:
            with torch.no_grad():
                self.weight.copy_(norm.weight)
                self.bias.copy_(norm.bias)
        # timm's BatchNormAct2d and its relatives.
        self.drop: nn.Module = getattr(norm, "drop", None) or nn.Identity()
        self.act: nn.Module = getattr(norm, "act", None) or nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.act(self.drop(super().forward(input)))
        return output


def apply_batch_norm_policy(network: nn.Module, policy: BatchNormPolicy) -> str | None:
    """Says what was done to how many layers; None if there are none."""
    norms = {path: module for path, module in network.named_modules() if isinstance(module, _BatchNorm)}
    if not norms:
        return None
    count = f"{len(norms)} BatchNorm layer{'s' if len(norms) > 1 else ''}"
    if policy == "frozen":
        for norm in norms.values():
            norm.eval()
            norm.register_forward_hook(_lay_out_gradient)
        return f"{count}: statistics frozen, scale and bias learn (--batch-norm frozen)"
    for path, norm in norms.items():
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, GroupedNorm(norm))
    return (
        f"{count}: GroupNorm of up to {MOST_GROUPS} groups instead, scale and bias kept (--batch-norm group)"
    )


def _lay_out_gradient(_norm: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """torch 2.13.0 gives wrong gradients of scale and bias for one example alone whose gradient lies otherwise than the
    example does, as behind a transposition: it is copied first."""
    if len(output) == 1 and output.requires_grad:
        output.register_hook(Tensor.contiguous)


def has_statistics(network: nn.Module) -> bool:
    """Whether some BatchNorm has seen data: its statistics are not those that it starts with."""
    return any(
        isinstance(module, _BatchNorm) and module.running_mean is not None and bool(_any(module.running_mean))
        for module in network.modules()
    )


def _any(values: Any) -> Any:
    return values.ne(0).any()
