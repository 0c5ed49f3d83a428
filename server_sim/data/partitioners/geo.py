"""Clients by where their examples come from: cells of the S2 grid, finer where there is more (Hsu, Qi and Brown 2020, 4.1).

"Every S2 cell is recursively subdivided into four finer-level cells until no single cell contains more than N_max examples.
Cells ending up with less than N_min examples are discarded."  The paper has N_min = 0.01 N_max.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import IntArray
from server_sim.data.partitioners.partitioner import NOBODY, Pool
from server_sim.data.s2_cells import adaptive_cells


@dataclass(frozen=True)
class Geo:
    max_examples: int
    """N_max"""
    min_share: float = 0.01
    """N_min / N_max"""

    def __post_init__(self) -> None:
        if self.max_examples < 1:
            raise ValueError(f"max_examples is {self.max_examples}; expected 1 or more")
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share is {self.min_share}; expected 0 to 1")

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:  # noqa: ARG002 - nothing is left to chance
        return self.cells(pool)[0]

    def cells(self, pool: Pool) -> tuple[IntArray, list[str]]:
        """Owners, and the S2 token of each client."""
        if pool.places is None:
            raise ValueError(
                "geo splits by latitude and longitude, which these data do not have; choose another partitioner"
            )
        known = np.flatnonzero(np.isfinite(pool.places).all(1))
        numbers, tokens = adaptive_cells(np.asarray(pool.places)[known], self.max_examples)
        counts = np.bincount(numbers, minlength=len(tokens))
        kept = counts >= self.min_share * self.max_examples
        if not kept.any():
            raise ValueError(
                f"no cell holds {self.min_share * self.max_examples:g} examples or more; expected a smaller min_share"
            )
        new_number = np.where(kept, np.cumsum(kept) - 1, NOBODY)
        owners = np.full(len(pool.labels), NOBODY)
        owners[known] = new_number[numbers]
        return owners, [token for token, keep in zip(tokens, kept.tolist(), strict=True) if keep]
