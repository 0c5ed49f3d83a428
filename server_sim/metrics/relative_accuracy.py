"""Accuracy as a share of what centralized training reaches (Hsu, Qi and Brown 2020, section 6 and Table 5)."""

from __future__ import annotations

from collections.abc import Sequence

from server_sim.runs.records import RunGroup


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


def is_centralized(group: RunGroup) -> bool:
    return group.first.experiment.scheme.sampler() is None


def centralized_score(group: RunGroup, groups: Sequence[RunGroup]) -> float | None:
    """The mean of the centralized runs that it is compared with: those of the same model, as it starts and as it learns.

    Splits share one reference, as their examples are the same (Hsu et al. 2020, Table 1); a model that is pretrained and one
    that is not have one each (Table 5), and so have two layers and all of them (Table 4).
    """
    model = group.first.experiment.model
    scores = [
        score
        for other in groups
        if is_centralized(other) and other.first.experiment.model == model
        for score in other.scores
    ]
    return sum(scores) / len(scores) if scores else None
