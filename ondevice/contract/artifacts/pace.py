"""A runtime's pace: how long a step takes beside eager torch, as it was measured when the artifact was made.

The manifest has it per runtime under `provenance.pace`; an artifact that was made before has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ondevice.contract.artifacts.manifest import Manifest

SLOW = 3.0
"""Times eager's own time: a step that takes longer is said to be slow."""
LEAST_SHARE = 0.01
"""Of the step, below which an operator is not worth a word."""


@dataclass(frozen=True)
class Pace:
    of_eager: float
    """The step's time over that of eager torch, in CPU time on this machine."""
    portable: Mapping[str, float] = field(default_factory=dict)
    """ExecuTorch's own operators by their share of the step, the costliest first."""

    @property
    def slow(self) -> bool:
        return self.of_eager > SLOW

    def explain(self) -> str:
        words = f"{self.of_eager:.2f} of eager's time"
        if self.portable:
            shares = [f"{name} {share:.0%}" for name, share in self.portable.items() if share >= LEAST_SHARE]
            named = f" ({', '.join(shares)})" if shares else ""
            words += f", {sum(self.portable.values()):.0%} of it in portable kernels{named}"
        if not self.slow:
            return words
        return f"slow: {words}; export for another runtime, or write those layers in other operators"


def paces_of(manifest: Manifest) -> dict[str, Pace]:
    """By runtime."""
    return {runtime: Pace(**document) for runtime, document in manifest.provenance.get("pace", {}).items()}
