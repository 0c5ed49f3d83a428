"""What a partitioner sees, and what it gives: the protocol, and the arithmetic that partitioners share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ondevice.contract.vocabulary import IntArray

NOBODY = -1
"""The owner of an example that no client gets."""


@dataclass(frozen=True)
class Pool:
    """The training examples that are dealt out."""

    labels: IntArray
    """[n] class ids"""
    users: IntArray
    """[n] whose they are in the data itself"""
    places: NDArray[np.float64] | None = None
    """[n, 2] latitude and longitude in degrees, NaN where unknown; None where the data have none"""
    classes: IntArray | None = None
    """[n, most of them] where examples have several: all of each, NO_CLASS behind the last"""


class Partitioner(Protocol):
    """The same pool and generator give the same owners."""

    def owners(self, pool: Pool, rng: np.random.Generator) -> IntArray:
        """[n]: the client that gets each example, or NOBODY; [n, k] where up to k clients get it."""
        ...


def client_sizes(num_examples: int, num_clients: int, spread: float, rng: np.random.Generator) -> IntArray:
    """How many examples each client gets: equal, or log-normal with this deviation of the logarithm; at least one each."""
    if not 1 <= num_clients <= num_examples:
        raise ValueError(f"num_clients is {num_clients}; expected 1 to {num_examples}, one example for each")
    if spread < 0:
        raise ValueError(f"size_spread is {spread}; expected 0 or more")
    if spread == 0:
        return np.full(num_clients, num_examples // num_clients)
    shares = np.exp(spread * rng.standard_normal(num_clients))
    sizes: IntArray = 1 + np.floor((num_examples - num_clients) * shares / shares.sum()).astype(np.int64)
    return sizes
