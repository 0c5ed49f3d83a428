"""What a step holds in memory while it runs, call by call: from the plan that the exported program carries.

    weights      the dense parameters and table rows, the caller's from beginning to end
    gradients    room for as many numbers, the caller's too
    examples     features, labels and side arrays
    activations  in the program's arena, kept from the forward pass for the backward pass
    temporaries  in the arena, of one pass alone

All at the bounds, which is what the arena is planned for.  What the kernels take for a moment of their own (packed
matrices, patches), the runtime and the client are not in any plan: a measured peak has them too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ondevice.contract.artifacts.program_calls import OperatorCall, PlannedTensor, ProgramCalls
from ondevice.contract.step_signature import Bounds, StepSignature

_BYTES = {"float32": 4, "int64": 8, "uint8": 1}


@dataclass(frozen=True)
class AliveTensor:
    """A planned tensor, and the call that wrote it."""

    num_bytes: int
    layer: str
    operator: str
    kept: bool
    """From the forward pass for the backward pass."""


@dataclass(frozen=True)
class MemoryTimeline:
    """Bytes, and in the arena bytes at every call."""

    weights: int
    gradients: int
    examples: int
    arena: int
    """As the program asks for it; the difference to the planned peak is lost between tensors."""
    calls: tuple[OperatorCall, ...]
    activations: tuple[int, ...]
    temporaries: tuple[int, ...]
    peak_call: int
    """The call at which most of the arena is in use."""
    at_peak: tuple[AliveTensor, ...]
    """What is alive there, the largest first."""

    @property
    def planned_peak(self) -> int:
        return self.activations[self.peak_call] + self.temporaries[self.peak_call]

    @property
    def total(self) -> int:
        """What a client needs for the step itself."""
        return self.weights + self.gradients + self.examples + self.arena


def memory_timeline(table: ProgramCalls, signature: StepSignature, bounds: Bounds) -> MemoryTimeline:
    kept = [0] * len(table.calls)
    temporary = [0] * len(table.calls)
    for tensor in table.tensors:
        alive = kept if _is_kept(tensor, table) else temporary
        for at in range(tensor.first, tensor.last + 1):
            alive[at] += tensor.num_bytes
    peak = max(range(len(table.calls)), key=lambda at: kept[at] + temporary[at])
    at_peak = [tensor for tensor in table.tensors if tensor.first <= peak <= tensor.last]
    trained = set(signature.trained)
    size = {spec.name: math.prod(spec.sizes(bounds)) * _BYTES[spec.dtype] for spec in signature}
    weights = sum(size[name] for name in trained)
    return MemoryTimeline(
        weights=weights,
        gradients=weights,
        examples=sum(size.values()) - weights,
        arena=table.arena_bytes,
        calls=table.calls,
        activations=tuple(kept),
        temporaries=tuple(temporary),
        peak_call=peak,
        at_peak=tuple(
            AliveTensor(
                tensor.num_bytes,
                table.calls[tensor.first].layer,
                table.calls[tensor.first].operator,
                _is_kept(tensor, table),
            )
            for tensor in sorted(at_peak, key=lambda tensor: -tensor.num_bytes)
        ),
    )


def _is_kept(tensor: PlannedTensor, table: ProgramCalls) -> bool:
    return table.calls[tensor.last].backward and not table.calls[tensor.first].backward
