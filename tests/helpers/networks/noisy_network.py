"""A network with every kind of randomness, and its plain twin: the same layers with masks that are multiplied by hand."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.foreign import give


class DropPath(nn.Module):
    """Stochastic depth as timm and torchvision write it: a number per example, drawn into a fresh tensor."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1 - self.probability
        mask = x.new_empty((len(x),) + (1,) * (x.dim() - 1)).bernoulli_(keep)
        return x * mask.div_(keep)


class NoisyNetwork(nn.Module):
    """Channels, numbers, whole blocks and attention weights are dropped; the last by a function, not a module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.channels = nn.Dropout2d(0.3)
        self.second = nn.Conv2d(8, 8, 1)
        self.numbers = nn.Dropout(0.4)
        self.block = nn.Linear(8, 8)
        self.path = DropPath(0.5)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.25, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        x = self.channels(F.relu(self.stem(images)))
        x = self.numbers(self.second(x)).flatten(2).transpose(1, 2)
        x = x + self.path(torch.tanh(self.block(x)))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return F.dropout(x.mean(1), 0.2, self.training)


def spec_of(network: nn.Module, randomness: str = "input") -> StepSpec:
    return StepSpec(
        architecture=give(network),
        embedding_dim=4,
        image_shape=(3, 12, 12),
        randomness=randomness,  # type: ignore[arg-type]
    )


def plain_embeddings(
    weights: Mapping[str, Tensor], pixels: Tensor, noise: Mapping[str, Tensor], heads: int = 2
) -> Tensor:
    """`NoisyNetwork` and the embedding in float64, written out: every mask is noise < 1 - p, over 1 - p."""

    def of(name: str) -> Tensor:
        return weights[f"model.{name}"]

    def mask(site: str, p: float, *shape: int) -> Tensor:
        kept = noise[f"noise/model{site}"].reshape(shape) < 1 - p
        return kept.double() / (1 - p)

    batch = len(pixels)
    x = F.relu(F.conv2d(pixels, of("stem.weight"), of("stem.bias"), stride=2))
    x = x * mask(".channels", 0.3, batch, 8, 1, 1)
    x = F.conv2d(x, of("second.weight"), of("second.bias")) * mask(".numbers", 0.4, batch, 8, 5, 5)
    x = x.flatten(2).transpose(1, 2)
    x = x + torch.tanh(F.linear(x, of("block.weight"), of("block.bias"))) * mask(".path", 0.5, batch, 1, 1)
    projected = F.linear(x, of("attention.in_proj_weight"), of("attention.in_proj_bias"))
    q, k, v = (
        each.reshape(batch, 25, heads, 8 // heads).transpose(1, 2) for each in projected.chunk(3, dim=-1)
    )
    attention = torch.softmax(q @ k.transpose(-2, -1) / (8 // heads) ** 0.5, -1)
    attention = attention * mask(".attention", 0.25, batch, heads, 25, 25)
    mixed = (attention @ v).transpose(1, 2).reshape(batch, 25, 8)
    x = x + F.linear(mixed, of("attention.out_proj.weight"), of("attention.out_proj.bias"))
    features = x.mean(1) * mask("", 0.2, batch, 8)
    return F.linear(features, weights["embedding.weight"], weights["embedding.bias"])
