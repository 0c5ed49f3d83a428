"""What the ExecuTorch lowering knows of a tensor: often a formula, and not yet a node.

Activations and their gradients lie as planes [C, B, H, W].  A formula over planes (normalised, activated, gated, spread) is
handed from operator to operator; those that can read it take it as it is, and only for the others it becomes a node
(`rewrite.py`).  So what is cheap to recompute is not stored between forward and backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import fx


class Activation(IntEnum):
    """As in `ondevice/native/kernels/kernels.h`."""

    NONE = 0
    RELU = 1
    HARDSWISH = 2
    HARDSIGMOID = 3
    RELU6 = 4
    SIGMOID = 5
    SILU = 6
    TANH = 7
    GELU = 8
    GELU_TANH = 9
    SOFTPLUS = 10


Shape = tuple[int, ...]
"""As torch has it: [B, C, H, W]."""
ValueArguments = tuple[fx.Node, fx.Node | None, fx.Node | None, fx.Node | None, int]
"""x, moments, gamma, beta, activation: a value as the operators take it."""


@dataclass(frozen=True)
class Planes:
    """A node that lies as [C, B, H, W]."""

    node: fx.Node


@dataclass(frozen=True)
class Value:
    """activation(GroupNorm(x)), with x a node that lies as [C, B, H, W].

    BatchNorm with frozen statistics is one too: moments that are constants, and a group for every channel.
    """

    x: fx.Node
    moments: fx.Node
    gamma: fx.Node
    beta: fx.Node
    activation: Activation = Activation.NONE

    def arguments(self) -> ValueArguments:
        return self.x, self.moments, self.gamma, self.beta, int(self.activation)


@dataclass(frozen=True)
class Gated:
    """A value times one number per plane: squeeze-and-excite."""

    value: Value
    gate: fx.Node | None
    """[B, C]; None for the value as it is."""


@dataclass(frozen=True)
class PerPlane:
    """A [B, C] vector seen as [B, C, 1, 1], or spread to [B, C, H, W]."""

    vector: fx.Node
    shape: Shape
    """Of this very value: whoever reads it may have another one in hand."""


@dataclass(frozen=True)
class PlaneGradient:
    """planes * scale + shift, any of them absent; scale and shift are [B, C]."""

    planes: fx.Node | None
    shape: Shape
    scale: fx.Node | None = None
    shift: fx.Node | None = None


@dataclass(frozen=True)
class ThroughActivation:
    """gradient * activation'(GroupNorm(x)) of a `Value`."""

    gradient: PlaneGradient
    value: Value


@dataclass(frozen=True)
class GradientTimesValue:
    """The product of planes and a value of the same size, of which the graph mostly wants the sums over planes."""

    planes: fx.Node
    value: Value


@dataclass(frozen=True)
class Transposed:
    """Matrices read the other way round; free where they meet a product."""

    node: fx.Node
    rank: int = 2
    """3 for one matrix after the other."""


OnPlanes = Planes | Value | Gated | PerPlane | PlaneGradient | ThroughActivation | GradientTimesValue
ON_PLANES = (Planes, Value, Gated, PerPlane, PlaneGradient, ThroughActivation, GradientTimesValue)
"""Everything that lies as planes; a `Transposed` matrix does not."""

Known = fx.Node | OnPlanes | Transposed
"""What may be known of one tensor; a node is in torch's own layout."""
Given = Known | int | float | bool | None | list["Given"]
"""What a rule may find among its arguments."""
Result = Known | None | tuple[Known | None, ...]
"""What a rule makes of an operator: one output, or several."""


@dataclass(frozen=True)
class Copied:
    """What a rule answers where it has nothing to say: the operator stays as it is."""


COPIED = Copied()
