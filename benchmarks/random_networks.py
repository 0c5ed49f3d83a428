"""Random networks of what people write: convolutions of every kind, norms, activations, gates, attention, poolings, joins.

A network is a function of its seed, so a failure is reproduced by its number.  `fuzz_networks.py` runs any number of them;
the tests run a few.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.random_gates import GATES, gates_for
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import ImageExtractor
from ondevice.model.train_step import TrainStep

EMBEDDING_DIM = 6

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x, inplace=True),
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "elu": F.elu,
    "softplus": F.softplus,
    "mish": F.mish,
    "relu + silu": lambda x: F.relu(x) + F.silu(x),
    "gelu twice": lambda x: F.gelu(F.gelu(x)),
    "squared relu": lambda x: F.relu(x) ** 2,
    "absolute": torch.abs,
    "clamped": lambda x: x.clamp(-0.5, 0.7),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "star": lambda x: F.relu6(x) * x,
    "selu": F.selu,
    "celu": F.celu,
    "softsign": F.softsign,
    "log sigmoid": F.logsigmoid,
    "bell": lambda x: torch.exp(-(x**2)),
    "sine": torch.sin,
    "root": lambda x: torch.sqrt(1 + x.square()),
}
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max 2": lambda x: F.max_pool2d(x, 2),
    "max 3/2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max 2 ceil": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "max 3/2 ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max 2 dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "max 3x2": lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0)),
    "average 2": lambda x: F.avg_pool2d(x, 2),
    "average 3/2": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average 3/1, pixels": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "average 2 ceil": lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
    "adaptive 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive 2": lambda x: F.adaptive_avg_pool2d(x, 2),
    "strided": lambda x: x[:, :, ::2, ::2],
    "padded": lambda x: F.pad(x, (1, 0, 0, 2)),
    "reflected": lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x, (1, 1, 1, 0), mode="replicate"),
    "upsampled": lambda x: F.interpolate(x, scale_factor=2),
    "upsampled bilinearly": lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    "unshuffled": lambda x: F.pixel_unshuffle(x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2], 2),
    "windows": lambda x: x.unfold(2, 3, 1).mean(-1),
    "crossed": lambda x: x[:, :, 1:, :-1] - x[:, :, :-1, 1:],
}
JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "add after": lambda x, y: y + x,
    "add weighted": lambda x, y: torch.add(x, y, alpha=0.5),
    "subtract": lambda x, y: y - x,
    "multiply": lambda x, y: x * y,
    "concatenate": lambda x, y: torch.cat([x, y], 1),
    "concatenate, take": lambda x, y: torch.cat([x, y], 1)[:, 1:],
    "divide": lambda x, y: y / (1 + x.abs()),
    "larger": torch.maximum,
}
HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean((2, 3)),
    "mean kept": lambda x: x.mean((2, 3), keepdim=True).flatten(1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "flatten": lambda x: x.flatten(1),
    "largest": lambda x: x.amax((2, 3)),
    "tokens": lambda x: x.flatten(2).transpose(1, 2).mean(1),
    "power mean": lambda x: x.clamp(min=1e-2).pow(3).mean((2, 3)).pow(1 / 3),
    "mean and largest": lambda x: torch.cat([x.mean((2, 3)), x.flatten(2).amax(-1)], 1),
    "soft largest": lambda x: x.flatten(2).logsumexp(-1),
    "rows": lambda x: x.mean(3).flatten(1),
    "weighed": lambda x: (x * x.flatten(2).softmax(-1).view_as(x)).sum((2, 3)),
}
Convolution = Callable[[int, int, bool], nn.Module]
CONVOLUTIONS: dict[str, Convolution] = {
    "1x1": lambda c, out, bias: nn.Conv2d(c, out, 1, bias=bias),
    "1x1/2": lambda c, out, bias: nn.Conv2d(c, out, 1, 2, bias=bias),
    "3x3": lambda c, out, bias: nn.Conv2d(c, out, 3, padding=1, bias=bias),
    "3x3/2": lambda c, out, bias: nn.Conv2d(c, out, 3, 2, 1, bias=bias),
    "3x3 padded by 2": lambda c, out, bias: nn.Conv2d(c, out, 3, padding=2, bias=bias),
    "5x5/2": lambda c, out, bias: nn.Conv2d(c, out, 5, 2, 2, bias=bias),
    "7x7/2": lambda c, out, bias: nn.Conv2d(c, out, 7, 2, 3, bias=bias),
    "1x3": lambda c, out, bias: nn.Conv2d(c, out, (1, 3), padding=(0, 1), bias=bias),
    "7x1": lambda c, out, bias: nn.Conv2d(c, out, (7, 1), padding=(3, 0), bias=bias),
    "dilated": lambda c, out, bias: nn.Conv2d(c, out, 3, padding=2, dilation=2, bias=bias),
    "grouped": lambda c, out, bias: nn.Conv2d(c, out, 3, padding=1, groups=2, bias=bias),
    "grouped 1x1": lambda c, out, bias: nn.Conv2d(c, out, 1, groups=2, bias=bias),
    "grouped/2": lambda c, out, bias: nn.Conv2d(c, out, 3, 2, 1, groups=2, bias=bias),
    "depthwise 3": lambda c, _out, bias: nn.Conv2d(c, c, 3, padding=1, groups=c, bias=bias),
    "depthwise 3/2": lambda c, _out, bias: nn.Conv2d(c, c, 3, 2, 1, groups=c, bias=bias),
    "depthwise 5": lambda c, _out, bias: nn.Conv2d(c, c, 5, padding=2, groups=c, bias=bias),
    "depthwise 7": lambda c, _out, bias: nn.Conv2d(c, c, 7, padding=3, groups=c, bias=bias),
    "depthwise 7/2": lambda c, _out, bias: nn.Conv2d(c, c, 7, 2, 3, groups=c, bias=bias),
    "depthwise dilated": lambda c, _out, bias: nn.Conv2d(c, c, 3, padding=2, dilation=2, groups=c, bias=bias),
    "depthwise twice": lambda c, _out, bias: nn.Conv2d(c, 2 * c, 3, padding=1, groups=c, bias=bias),
    "transposed": lambda c, out, bias: nn.ConvTranspose2d(c, out, 3, padding=1, bias=bias),
    "transposed/2": lambda c, out, bias: nn.ConvTranspose2d(c, out, 2, 2, bias=bias),
    "transposed, grouped": lambda c, out, bias: nn.ConvTranspose2d(c, out, 3, 1, 1, groups=2, bias=bias),
    "attention": lambda c, _out, _bias: Attention(c),
    "mixer": lambda c, _out, bias: Mixer(c, bias),
}
STEMS = ("3x3", "3x3/2", "5x5/2", "1x1", "7x7/2", "1x3")
NORMS = ("none", "group", "batch", "batch", "layer", "instance")


class Attention(nn.Module):
    """Over the pixels, two heads, with a norm before and a shortcut around."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        batch, count, channels = tokens.shape
        heads = 2 if channels % 2 == 0 else 1
        q, k, v = self.qkv(self.norm(tokens)).reshape(batch, count, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, count, channels)
        attended: Tensor = (tokens + self.out(mixed)).transpose(1, 2).reshape(x.shape)
        return attended


class Mixer(nn.Module):
    """A layer over the channels, as channels-last networks have it."""

    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = (
            nn.Linear(channels, 2 * channels, bias),
            nn.Linear(2 * channels, channels, bias),
        )
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(F.gelu(self.up(self.norm(x.permute(0, 2, 3, 1))))) * self.scale
        mixed: Tensor = x + y.permute(0, 3, 1, 2)
        return mixed


class LayerNorm2d(nn.Module):
    """Over the channels of every pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        normal: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normal


def _norm(kind: str, channels: int, draw: random.Random) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(draw.choice([n for n in (1, 2, 3, 4) if channels % n == 0]), channels)
    if kind == "instance":
        return nn.GroupNorm(channels, channels)
    if kind == "batch":
        norm = nn.BatchNorm2d(channels)
        nn.init.normal_(norm.running_mean, 0, 0.3)  # type: ignore[arg-type]
        nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
        return norm
    return LayerNorm2d(channels) if kind == "layer" else nn.Identity()


class Block(nn.Module):
    """Convolution, norm, activation, gate; then joined with its input; then pooled."""

    def __init__(self, draw: random.Random, x: Tensor, convolutions: tuple[str, ...]) -> None:
        super().__init__()
        channels = x.shape[1]
        kind = draw.choice(convolutions)
        if "grouped" in kind and channels % 2:
            kind = "3x3"
        self.convolution = CONVOLUTIONS[kind](channels, draw.choice((4, 6, 8)), draw.random() < 0.5)
        y = self.convolution(x)
        norm = draw.choice(NORMS)
        self.norm = _norm(norm, y.shape[1], draw)
        self.activation = draw.choice(tuple(ACTIVATIONS))
        gate = draw.choice(gates_for(y.shape[1]))
        self.gate = GATES[gate](y.shape[1])
        y = self.gate(y)
        joins = [
            name
            for name in JOINS
            if y.shape == x.shape or (name.startswith("conc") and y.shape[2:] == x.shape[2:])
        ]
        self.join = draw.choice(joins) if joins and draw.random() < 0.5 else ""
        self.pool = draw.choice(tuple(POOLS)) if min(y.shape[2:]) >= 4 and draw.random() < 0.4 else ""
        self.description = (
            f"{kind}, {norm}, {self.activation}, {gate}, {self.join or '-'}, {self.pool or '-'}"
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gate(ACTIVATIONS[self.activation](self.norm(self.convolution(x))))
        if self.join:
            y = JOINS[self.join](x, y)
        return POOLS[self.pool](y) if self.pool else y


class WideNetwork(ImageExtractor):
    def __init__(self, spec: StepSpec, blocks: list[Block], head: str, features: int) -> None:
        super().__init__(spec)
        self.blocks = nn.Sequential(*blocks)
        self.head = head
        self.embedding = nn.Linear(features, EMBEDDING_DIM)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(HEADS[self.head](self.blocks(images)))
        return embeddings


@dataclass(frozen=True)
class DrawnNetwork:
    step: TrainStep
    description: str
    """All that was drawn, for the message where it fails."""


def wide_network(seed: int) -> DrawnNetwork:
    """The network of a seed, its weights included; torch's own random state is left as it was."""
    draw = random.Random(seed)
    height = draw.randint(4, 14)
    image_shape = (draw.choice((1, 3)), height, height if draw.random() < 0.6 else draw.randint(4, 14))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        x = torch.zeros(2, *image_shape)
        blocks: list[Block] = []
        for depth in range(draw.randint(1, 3)):
            blocks.append(Block(draw, x, tuple(CONVOLUTIONS) if depth else STEMS).eval())
            x = blocks[-1](x)
        head = draw.choice(tuple(HEADS))
        spec = StepSpec("random", EMBEDDING_DIM, image_shape)
        network = WideNetwork(spec, blocks, head, HEADS[head](x).shape[1]).eval()
        for layer in network.modules():
            if isinstance(layer, (nn.GroupNorm, nn.BatchNorm2d, nn.LayerNorm)):  # as after training
                nn.init.normal_(layer.weight, 1, 0.3)
                nn.init.normal_(layer.bias, 0, 0.3)
    drawn = " | ".join((*(block.description for block in blocks), head))
    return DrawnNetwork(TrainStep(spec, network), f"network {seed}, {image_shape}: {drawn}")
