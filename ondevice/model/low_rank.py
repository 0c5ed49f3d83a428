"""Low-rank adapters (Hu et al. 2021): a frozen layer plus a product of two narrow ones, which alone learn and travel.

    W x + b  ->  W x + b + U (D x),   D [rank, in] random, U [out, rank] zero: the network starts as it was

They sit on fully connected layers and on 1x1 convolutions.  The layer keeps its name and its weights theirs; `lora_down` and
`lora_up` are added to it, so that weights from elsewhere load as before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.foreign import UnusableModel

DOWN, UP = "lora_down", "lora_up"


def add_adapters(network: nn.Module, spec: StepSpec) -> str | None:
    """Says how many layers got one; None where none were asked for.

    A layer that is narrower than its adapter would be is left alone.
    """
    rank = spec.adapter_rank
    if rank is None:
        return None
    adapted = 0
    for path, layer in network.named_modules():
        if path == "embedding" or not _is_adaptable(layer):
            continue
        weight = layer.weight
        assert isinstance(weight, Tensor)
        out, inputs = weight.shape[:2]
        if rank * (out + inputs) >= out * inputs:
            continue
        rest = (1,) * (weight.dim() - 2)
        down = nn.Parameter(torch.empty(rank, inputs, *rest))
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        layer.register_parameter(DOWN, down)
        layer.register_parameter(UP, nn.Parameter(torch.zeros(out, rank, *rest)))
        layer.register_forward_hook(_adapted)
        adapted += 1
    if not adapted:
        raise UnusableModel(
            f"train is {spec.train!r}, and no layer of {spec.architecture} is wider than its adapter would be; "
            "expected a smaller rank"
        )
    return f"adapters of rank {rank} on {adapted} layers: they and the embedding learn, and nothing else"


def _is_adaptable(layer: nn.Module) -> bool:
    if type(layer) is nn.Linear:
        return True
    return (
        isinstance(layer, nn.Conv2d)
        and set(layer.kernel_size) == {1}
        and layer.groups == 1
        and set(layer.padding) == {0}
    )


def _adapted(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """A forward hook: what the layer gives, plus what its adapter gives."""
    (x,) = inputs
    down, up = getattr(layer, DOWN), getattr(layer, UP)
    if isinstance(layer, nn.Conv2d):
        return output + F.conv2d(F.conv2d(x, down, stride=layer.stride), up)
    return output + F.linear(F.linear(x, down), up)
