"""Clients that are small copies of the whole: examples dealt out by chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import IntArray
from server_sim.data.partitioners.partitioner import NOBODY, Pool, client_sizes


@dataclass(frozen=True)
class Iid:
    num_clients: int
    size_spread: float = 0.0
    """The deviation of the logarithm of the clients' sizes; 0 makes them equal."""

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:
        sizes = client_sizes(len(pool.labels), self.num_clients, self.size_spread, rng)
        owners = np.full(len(pool.labels), NOBODY)
        owners[rng.permutation(len(owners))[: sizes.sum()]] = np.repeat(np.arange(self.num_clients), sizes)
        return owners
