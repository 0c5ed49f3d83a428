"""What random networks do to a block's output before it is joined: gates, scales, and channels in another order.

Each is made for a number of channels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SqueezeAndExcite(nn.Module):
    def __init__(self, channels: int, convolutional: bool) -> None:
        super().__init__()
        self.convolutional = convolutional
        layer = (lambda a, b: nn.Conv2d(a, b, 1)) if convolutional else nn.Linear
        self.reduce, self.restore = layer(channels, 2), layer(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3), keepdim=True) if self.convolutional else x.mean((2, 3))
        gate = torch.sigmoid(self.restore(F.silu(self.reduce(pooled))))
        return x * (gate if self.convolutional else gate[:, :, None, None])


class Scale(nn.Module):
    """A trained factor, of the shape that is given."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(0.5 + torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class SpatialGate(nn.Module):
    """CBAM's: one number per pixel."""

    def __init__(self, _channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.layer(pooled))


class NeighbouringChannels(nn.Module):
    """ECA's gate: a convolution along the channels."""

    def __init__(self, _channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.layer(x.mean((2, 3))[:, None]))
        return x * gate.transpose(1, 2)[..., None]


class ResponseNorm(nn.Module):
    """ConvNeXt V2's: channels compete by their lengths."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(1, channels, 1, 1))
        self.shift = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        length = (x.square().sum((2, 3), keepdim=True) + 1e-3).sqrt()
        return x + torch.addcmul(self.shift, self.scale, x * (length / (length.mean(1, keepdim=True) + 1e-3)))


class GlobalContext(nn.Module):
    """What the pixels say together, by their weights, is added to each."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weights, self.layer = nn.Conv2d(channels, 1, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(x).flatten(2).softmax(-1).transpose(1, 2)
        context = (x.flatten(2) @ weights)[..., None]
        added: Tensor = x + self.layer(context)
        return added


class Shuffle(nn.Module):
    """ShuffleNet's order of channels."""

    def __init__(self, _channels: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


class Branches(nn.Module):
    """Half of the channels go through a layer of their own, as in CSP networks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels // 2, channels // 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, 1)
        return torch.cat([one, F.silu(self.layer(other)) + other], 1)


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


GATES: dict[str, Callable[[int], nn.Module]] = {
    "ungated": lambda _: nn.Identity(),
    "linear gate": lambda channels: SqueezeAndExcite(channels, convolutional=False),
    "convolutional gate": lambda channels: SqueezeAndExcite(channels, convolutional=True),
    "layer scale": lambda channels: Scale(channels, 1, 1),
    "layer scale of four dimensions": lambda channels: Scale(1, channels, 1, 1),
    "one factor": lambda _: Scale(1),
    "one factor, no dimension": lambda _: Scale(),
    "prelu": nn.PReLU,
    "one prelu": lambda _: nn.PReLU(),
    "spatial gate": SpatialGate,
    "neighbouring channels": NeighbouringChannels,
    "response norm": ResponseNorm,
    "global context": GlobalContext,
    "one gate per example": lambda _: Function(lambda x: x * torch.sigmoid(x.mean((1, 2, 3), keepdim=True))),
    "pixels as directions": lambda _: Function(lambda x: F.normalize(x, dim=1, eps=1e-2)),
    "rolled": lambda _: Function(lambda x: x.roll((1, -1), (2, 3))),
    "flipped": lambda _: Function(lambda x: x.flip(3)),
    "transposed pixels": lambda _: Function(lambda x: x + x.mean(2, keepdim=True) - x.amax(3, keepdim=True)),
    "shuffled": Shuffle,
    "half a gate": lambda _: Function(lambda x: F.glu(x, 1)),
    "branches": Branches,
}
FOR_EVEN_CHANNELS = ("shuffled", "half a gate", "branches")


def gates_for(channels: int) -> list[str]:
    """Those that so many channels can take; `ungated` as often as all others together."""
    names = [name for name in GATES if channels % 2 == 0 or name not in FOR_EVEN_CHANNELS]
    return names + ["ungated"] * (len(names) - 2)
