"""Which K clients take part in a round (Algorithm 1, line 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Selection = Literal["uniform", "proportional"]
"""Every client equally likely, or with a probability proportional to its number of examples."""


def select_clients(
    num_examples: Sequence[int], clients_per_round: int, selection: Selection, rng: np.random.Generator
) -> list[int]:
    """Distinct client ids; `num_examples[k]` is what client k holds."""
    num_clients = len(num_examples)
    if clients_per_round > num_clients:
        raise ValueError(
            f"clients_per_round is {clients_per_round}, but the population has {num_clients} clients"
        )
    sizes = np.asarray(num_examples, np.float64)
    probability = sizes / sizes.sum() if selection == "proportional" else None
    chosen = rng.choice(num_clients, clients_per_round, replace=False, p=probability)
    return [int(client_id) for client_id in chosen]
