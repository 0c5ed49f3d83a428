"""Clients as the data has them: the authors of its records, or those who have enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import IntArray
from server_sim.data.partitioners.partitioner import NOBODY, Pool


@dataclass(frozen=True)
class NaturalId:
    min_examples: int = 1
    """Who has fewer takes no part."""

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:  # noqa: ARG002 - nothing is left to chance
        enough = np.bincount(pool.users) >= self.min_examples
        if not enough[pool.users].any():
            raise ValueError(f"min_examples is {self.min_examples}, and nobody has as many; expected fewer")
        return np.where(enough[pool.users], pool.users, NOBODY)
