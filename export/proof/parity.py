"""Does a runtime compute what the step says?  Asked of the real runtime, before an artifact is published."""

from __future__ import annotations

from collections.abc import Sequence

from ondevice.backends.opening import open_backend
from ondevice.contract.artifact import Artifact
from ondevice.contract.artifacts.manifest import Parity
from ondevice.contract.golden_step import SLACK, Comparison, GoldenStep, check_golden, worst_of


class ParityFailed(RuntimeError):
    """A runtime's loss or gradients are further from the truth than float32 explains."""


def check_parity(artifact: Artifact, runtime: str, steps: Sequence[GoldenStep]) -> Parity:
    """The worst of several steps; raises ParityFailed at the first that misses the tolerance."""
    backend = open_backend(artifact, runtime)
    weights = artifact.initial()
    comparisons: list[Comparison] = []
    for step in steps:
        comparison = check_golden(backend, weights, step, SLACK.get(runtime, 1.0))
        if not comparison.passed:
            raise ParityFailed(
                f"{runtime} with {step.describe()}: {comparison.explain()}; "
                "nothing was published. A kernel or a lowering is wrong: compare it with eager on a smaller network"
            )
        comparisons.append(comparison)
    worst = worst_of(comparisons)
    return Parity(worst.worst_relative_error, worst.worst_tensor, passed=True)
