"""Clients whose classes are drawn from a Dirichlet distribution around that of the whole (Hsu, Qi and Brown 2020, B.1).

Client k draws q_k from Dir(α p), p the shares of the classes, and then its examples one by one by q_k, without
replacement.  A class whose examples are all given away is eliminated, and what is left of q_k is scaled up (Eq. 5).
α to infinity gives every client the distribution of the whole; α to 0 gives clients of one class, as long as it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.contract.vocabulary import IntArray
from server_sim.data.partitioners.partitioner import NOBODY, Pool, client_sizes


@dataclass(frozen=True)
class Dirichlet:
    num_clients: int
    concentration: float
    """α"""
    size_spread: float = 0.0
    """The deviation of the logarithm of the clients' sizes; 0 makes them equal."""

    def __post_init__(self) -> None:
        if not 0 <= self.concentration < np.inf:
            raise ValueError(f"concentration is {self.concentration}; expected a finite number, 0 or more")

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:
        sizes = client_sizes(len(pool.labels), self.num_clients, self.size_spread, rng)
        counts = np.bincount(pool.labels)
        prior = counts / counts.sum()
        # Every class as a shuffled pile, from which examples are taken off the end.
        order = rng.permutation(len(pool.labels))
        order = order[np.argsort(pool.labels[order], kind="stable")]
        starts = np.cumsum(counts) - counts
        left = counts.copy()
        owners = np.full(len(pool.labels), NOBODY)
        for client in rng.permutation(self.num_clients).tolist():
            own = self._distribution(prior, rng)
            missing = int(sizes[client])
            while missing:
                own = np.where(left > 0, own, 0)
                if own.sum() <= 0:
                    # All that it wanted is gone: it wants something of what is left.
                    own = self._distribution(np.where(left > 0, prior, 0), rng)
                    continue
                drawn = rng.choice(len(own), missing, p=own / own.sum())
                for label in drawn.tolist():
                    if not left[label]:
                        break
                    left[label] -= 1
                    owners[order[starts[label] + left[label]]] = client
                    missing -= 1
        return owners

    def _distribution(self, prior: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """q ~ Dir(α p); where all of it is at one class, that class by p."""
        found = np.zeros(len(prior))
        possible = np.flatnonzero(prior)
        shares = prior[possible] / prior[possible].sum()
        drawn = rng.dirichlet(self.concentration * shares) if self.concentration else np.zeros(len(possible))
        if np.isfinite(drawn).all() and drawn.sum() > 0:
            found[possible] = drawn
        else:
            found[possible[rng.choice(len(possible), p=shares)]] = 1
        return found
