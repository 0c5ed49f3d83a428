"""Accuracy as a share of what centralized training reaches (Hsu, Qi and Brown 2020, section 6 and Table 5)."""

from __future__ import annotations

from collections.abc import Sequence


def relative_accuracy(federated: float, centralized: float) -> float:
    """Acc_federated / Acc_centralized."""
    if not centralized > 0:
        raise ValueError(f"the centralized accuracy is {centralized}; expected more than 0")
    return federated / centralized


def rounds_to(curve: Sequence[tuple[int, float]], centralized: float, target: float) -> int | None:
    """The rounds until a run first reaches `target` of the centralized accuracy, by its (rounds, accuracy) in order.

    None where it never does: more than all of its rounds.
    """
    for rounds, accuracy in curve:
        if relative_accuracy(accuracy, centralized) >= target:
            return rounds
    return None
