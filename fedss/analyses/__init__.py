"""Looks at runs and models as the papers' figures do: `fedss analyse NAME`.

Adding an analysis is a file here with a `command`, and a line in `ANALYSES`.
"""

from __future__ import annotations

from collections.abc import Callable

from fedss.analyses import (
    budgets,
    communication,
    composition,
    confusion,
    early_stopping,
    gradient_noise,
    grid,
    head_parameters,
    head_share,
    parameter_budget,
    partition_sum,
    rounds_to_accuracy,
    skew,
)

ANALYSES: dict[str, Callable[..., None]] = {
    "budgets": budgets.command,
    "rounds-to-accuracy": rounds_to_accuracy.command,
    "early-stopping": early_stopping.command,
    "skew": skew.command,
    "grid": grid.command,
    "head-parameters": head_parameters.command,
    "parameter-budget": parameter_budget.command,
    "composition": composition.command,
    "confusion": confusion.command,
    "gradient-noise": gradient_noise.command,
    "head-share": head_share.command,
    "communication": communication.command,
    "partition-sum": partition_sum.command,
}
