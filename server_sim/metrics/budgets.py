"""Accuracy within a budget (Hsu, Qi and Brown 2020, Table 2): of rounds, or of batches.

A round of clients that train side by side takes as long as its largest client.  Its cost in batches is therefore the local
steps of that client, and a budget of batches is a proxy for a fixed time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from server_sim.runs.records import RunRecord

Points = list[tuple[int, float]]
"""(spent so far, score), in order."""


def by_rounds(run: RunRecord) -> Points:
    return [(line.round + 1, line.score) for line in run.rounds if line.score is not None]


def by_batches(run: RunRecord) -> Points:
    """Empty for a run without clients, or without a record of their sizes."""
    client = run.experiment.client
    steps = [client.epochs * -(-line.most_examples // client.batch_size) for line in run.rounds]
    if not all(steps):
        return []
    return [
        (spent, line.score)
        for spent, line in zip(accumulate(steps), run.rounds, strict=True)
        if line.score is not None
    ]


def score_within(points: Sequence[tuple[int, float]], budget: int) -> float | None:
    """The last score that the budget pays for; None where the run ended before it was spent, or it pays for none."""
    paid = [score for spent, score in points if spent <= budget]
    return paid[-1] if paid and points[-1][0] >= budget else None
