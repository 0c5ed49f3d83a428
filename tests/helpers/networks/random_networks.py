"""Small random networks made only of operators that every lowering claims; what they are for is the tests that draw them.

A network is a function of its seed, so a failure is reproduced by its number.  What is drawn: dense, strided, 1x1 and
depthwise convolutions, GroupNorm down to groups of one channel, activations, squeeze-and-excite gates, shortcuts (weighted
ones too), values that two activations read, max-pooling with all its options, and the heads that people write, on odd,
oblong and 1x1 planes.  A lowering may refuse an option, by its named error; it may not get one wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.vocabulary import LogitKind, StepSpec
from ondevice.model.extractors.extractor import ImageExtractor
from ondevice.model.train_step import TrainStep

EMBEDDING_DIM = 6

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": F.relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu + hardswish": lambda x: F.relu(x) + F.hardswish(x),
    "hardswish twice": lambda x: F.hardswish(F.hardswish(x)),
    "square": lambda x: x * x,
}
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "unpooled": lambda x: x,
    "max 2": lambda x: F.max_pool2d(x, 2),
    "max 3/2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max 3/2 unpadded": lambda x: F.max_pool2d(x, 3, 2),
    "max 3/1": lambda x: F.max_pool2d(x, 3, 1, 1),
    "max 2 ceil": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "max 2 dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
}
JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "add after": lambda x, y: y + x,
    "add weighted": lambda x, y: torch.add(x, y, alpha=0.5),
    "subtract": lambda x, y: torch.add(y, x, alpha=-1),
    "multiply": lambda x, y: x * y,
}
HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean((2, 3)),
    "mean kept": lambda x: x.mean((2, 3), keepdim=True).flatten(1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "adaptive, squeezed": lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(3).squeeze(2),
    "flatten": lambda x: x.flatten(1),
    "max 2, mean": lambda x: F.max_pool2d(x, 2, padding=1).mean((2, 3)),
    "relu, mean": lambda x: F.relu(x).mean((-1, -2)),
}
CONVOLUTIONS: dict[str, Callable[[int, int, bool], nn.Conv2d]] = {
    "1x1": lambda c, out, bias: nn.Conv2d(c, out, 1, bias=bias),
    "1x1/2": lambda c, out, bias: nn.Conv2d(c, out, 1, 2, bias=bias),
    "3x3": lambda c, out, bias: nn.Conv2d(c, out, 3, padding=1, bias=bias),
    "3x3/2": lambda c, out, bias: nn.Conv2d(c, out, 3, 2, 1, bias=bias),
    "3x3 unpadded": lambda c, out, bias: nn.Conv2d(c, out, 3, bias=bias),
    "5x5/2": lambda c, out, bias: nn.Conv2d(c, out, 5, 2, 2, bias=bias),
    "depthwise 3": lambda c, _out, bias: nn.Conv2d(c, c, 3, padding=1, groups=c, bias=bias),
    "depthwise 3/2": lambda c, _out, _bias: nn.Conv2d(c, c, 3, 2, 1, groups=c, bias=False),
    "depthwise 5": lambda c, _out, _bias: nn.Conv2d(c, c, 5, padding=2, groups=c, bias=False),
}
STEMS = ("3x3", "3x3/2", "5x5/2", "1x1")
COMMON = ("linear", "relu", "hardswish")


class Gate(nn.Module):
    """Squeeze-and-excite: every plane times a number, by fully connected layers or by 1x1 convolutions."""

    def __init__(self, channels: int, convolutional: bool) -> None:
        super().__init__()
        self.convolutional = convolutional
        layer = (lambda a, b: nn.Conv2d(a, b, 1)) if convolutional else nn.Linear
        self.reduce, self.restore = layer(channels, 2), layer(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(x, 1) if self.convolutional else x.mean((2, 3))
        gate = F.hardsigmoid(self.restore(F.relu(self.reduce(pooled))))
        return x * (gate if self.convolutional else gate[:, :, None, None])


class Block(nn.Module):
    """Convolution, norm, activation, gate; then joined with its input; then pooled."""

    def __init__(self, draw: random.Random, x: Tensor, convolutions: tuple[str, ...]) -> None:
        super().__init__()
        channels = x.shape[1]
        kind = draw.choice(convolutions)
        out = draw.choice((channels, 4, 6))
        self.convolution = CONVOLUTIONS[kind](channels, out, draw.random() < 0.5)
        y = self.convolution(x)
        self.norm: nn.Module = nn.Identity()
        if draw.random() < 0.6:
            groups = draw.choice([size for size in (1, 2, 3, 4, 6) if y.shape[1] % size == 0])
            self.norm = nn.GroupNorm(groups, y.shape[1])
        self.activation = draw.choice((*COMMON, *ACTIVATIONS))
        gate = draw.choice(("ungated", "ungated", "linear gate", "convolutional gate"))
        self.gate = nn.Identity() if gate == "ungated" else Gate(y.shape[1], "convolutional" in gate)
        self.join = draw.choice(tuple(JOINS)) if y.shape == x.shape and draw.random() < 0.7 else ""
        self.pool = draw.choice(("unpooled", *POOLS)) if min(y.shape[2:]) >= 3 else "unpooled"
        norm = f"GroupNorm {self.norm.num_groups}" if isinstance(self.norm, nn.GroupNorm) else "no norm"
        self.description = ", ".join(
            (f"{kind} to {y.shape[1]}", norm, self.activation, gate, self.join or "not joined", self.pool)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gate(ACTIVATIONS[self.activation](self.norm(self.convolution(x))))
        return POOLS[self.pool](JOINS[self.join](x, y) if self.join else y)


class Network(ImageExtractor):
    """Raw images -> embeddings, as `ondevice.model.extractors` asks: the last layer is `embedding`."""

    def __init__(self, spec: StepSpec, blocks: list[Block], head: str, features: int) -> None:
        super().__init__(spec)
        self.blocks = nn.Sequential(*blocks)
        self.head = head
        self.embedding = nn.Linear(features, EMBEDDING_DIM)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(HEADS[self.head](self.blocks(images)))
        return embeddings


@dataclass(frozen=True)
class RandomNetwork:
    module: Network
    image_shape: tuple[int, int, int]
    description: str
    """All that was drawn, for the message of a test that fails."""

    def step(self, logits: LogitKind) -> TrainStep:
        return TrainStep(StepSpec("random", EMBEDDING_DIM, self.image_shape, logits=logits), self.module)


def random_network(seed: int) -> RandomNetwork:
    """The network of a seed, its weights included; torch's own random state is left as it was."""
    draw = random.Random(seed)
    height = draw.randint(1, 11)
    image_shape = (draw.choice((1, 3)), height, height if draw.random() < 0.6 else draw.randint(1, 11))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        x = torch.zeros(2, *image_shape)
        blocks: list[Block] = []
        for depth in range(draw.randint(1, 3)):
            fitting = tuple(kind for kind in CONVOLUTIONS if min(x.shape[2:]) >= 3 or "unpadded" not in kind)
            blocks.append(Block(draw, x, fitting if depth else STEMS))
            x = blocks[-1](x)
        head = draw.choice(tuple(HEADS))
        spec = StepSpec("random", EMBEDDING_DIM, image_shape)
        network = Network(spec, blocks, head, HEADS[head](x).shape[1])
        for layer in network.modules():
            if isinstance(layer, nn.GroupNorm):  # as after training: not the identity
                nn.init.normal_(layer.weight, 1, 0.3)
                nn.init.normal_(layer.bias, 0, 0.3)
    drawn = " | ".join((*(block.description for block in blocks), head))
    return RandomNetwork(network, image_shape, f"network {seed}, {image_shape}: {drawn}")
