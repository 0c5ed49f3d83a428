"""Where in the arena every tensor lies: the longest-lived first, each at the lowest place that is free while it lives.

ExecuTorch places the largest tensors first.  In a training step the largest tensors that live long (kept for the backward
pass) and those that live for one call then lie between each other, and the gaps they leave are lost: 8 of 85 MB for
MobileNetV3-Large at 224 px with micro-batch 4.  Placed by lifetime the same tensors take there what is alive at the
peak, and next to nothing more; a small network may still lose some per cent.  The better of both plans is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Interval = tuple[int, int]


def planning_algorithms() -> Any:
    """ExecuTorch's suite, with our plan beside its own."""
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy

    return MemoryPlanningAlgorithmSuite([greedy, longest_lived_first])


def longest_lived_first(
    alignment: int, specs: set[Any], graph_module: Any, graph_signature: Any, extra_padding: int
) -> Any:
    """A planning algorithm as ExecuTorch calls them; its types are not known outside."""
    from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult, greedy

    tensors = list(specs)
    if any(spec.storage_base is not None or spec.mem_id not in (None, 1) for spec in tensors):
        # Parts of other tensors, or several memories: no program of ours has them.
        return greedy(alignment, specs, graph_module, graph_signature, extra_padding)
    for spec in tensors:
        spec.realign(alignment)
    offsets = place([tuple(spec.lifetime) for spec in tensors], [spec.allocated_memory for spec in tensors])
    ends = [offset + spec.allocated_memory for offset, spec in zip(offsets, tensors, strict=True)]
    placed = {
        spec: SpecAllocResult(1, number, offset)
        for number, (spec, offset) in enumerate(zip(tensors, offsets, strict=True))
    }
    return MemoryAlgoResult(placed, [0, max(ends, default=0) + extra_padding])


def place(lifetimes: Sequence[Interval], sizes: Sequence[int]) -> list[int]:
    """An offset for everything; what lives at the same time does not overlap.  Lifetimes include both ends."""
    offsets = [0] * len(sizes)
    placed: list[int] = []
    for one in sorted(range(len(sizes)), key=lambda at: (lifetimes[at][0] - lifetimes[at][1], -sizes[at])):
        first, last = lifetimes[one]
        neighbours = [
            (offsets[other], offsets[other] + sizes[other])
            for other in placed
            if lifetimes[other][0] <= last and first <= lifetimes[other][1]
        ]
        for begin, end in sorted(neighbours):
            if begin - offsets[one] >= sizes[one]:
                break
            offsets[one] = max(offsets[one], end)
        placed.append(one)
    return offsets
