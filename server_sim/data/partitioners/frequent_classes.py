"""Clients that differ in their frequent classes (FedMLH, section 6): all examples of such a class go to one random client.

An example of several frequent classes goes to the client of each.  The paper does not say what becomes of examples that
have none: here they are dealt out by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import NO_CLASS, IntArray
from server_sim.data.partitioners.partitioner import NOBODY, Pool


@dataclass(frozen=True)
class FrequentClasses:
    num_clients: int
    num_frequent: int
    """How many classes are dealt out whole: those with the most examples."""

    def __post_init__(self) -> None:
        if self.num_clients < 1 or self.num_frequent < 0:
            raise ValueError(
                f"num_clients is {self.num_clients} and num_frequent {self.num_frequent}; expected at least 1 and 0"
            )

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:
        """[n, clients]: every client that gets an example, and NOBODY."""
        classes = pool.labels[:, None] if pool.classes is None else pool.classes
        counts = np.bincount(classes[classes != NO_CLASS])
        frequent = np.argsort(-counts, kind="stable")[: self.num_frequent]
        client_of = np.full(len(counts) + 1, NOBODY)  # the last is for NO_CLASS
        client_of[frequent] = rng.integers(self.num_clients, size=len(frequent))
        gets = np.zeros((len(classes), self.num_clients), bool)
        example, place = np.nonzero(client_of[classes] != NOBODY)
        gets[example, client_of[classes[example, place]]] = True
        others = np.flatnonzero(~gets.any(1))
        gets[others, rng.integers(self.num_clients, size=len(others))] = True
        if not gets.any(0).all():
            raise ValueError(
                f"num_clients is {self.num_clients}, and client {int(np.argmin(gets.any(0)))} got nothing; expected fewer "
                "clients, or another seed"
            )
        return np.where(gets, np.arange(self.num_clients), NOBODY)
