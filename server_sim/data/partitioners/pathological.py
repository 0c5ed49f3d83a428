"""Clients of a few classes each (McMahan et al. 2017): examples sorted by class, cut into shards, some dealt to each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import IntArray
from server_sim.data.partitioners.partitioner import NOBODY, Pool


@dataclass(frozen=True)
class Pathological:
    num_clients: int
    shards_per_client: int = 2

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:
        num_shards = self.num_clients * self.shards_per_client
        if not 1 <= num_shards <= len(pool.labels) or self.shards_per_client < 1:
            raise ValueError(
                f"{self.num_clients} clients of {self.shards_per_client} shards: expected 1 to {len(pool.labels)} shards, "
                "one example for each"
            )
        order = rng.permutation(len(pool.labels))
        order = order[np.argsort(pool.labels[order], kind="stable")]
        size = len(order) // num_shards
        owners = np.full(len(order), NOBODY)
        owners[order[: size * num_shards]] = np.repeat(rng.permutation(num_shards) % self.num_clients, size)
        return owners
