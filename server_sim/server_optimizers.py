"""How the server applies an aggregated difference g: FedAvg, FedAvgM, FedAdam.  One rule serves φ and the columns of W.

    FedAvg    θ <- θ + γ g
    FedAvgM   v <- β v + g;                                   θ <- θ + γ v                 (FedVC Eq. 5; FedSS A.2)
    FedAdam   m <- β₁ m + (1 − β₁) g;  v <- β₂ v + (1 − β₂) g²;  θ <- θ + γ m / (√v + τ)    (Reddi et al. 2021, Alg. 2)

Deltas are client − server, so the server *adds*.

A column that nobody sampled in a round has g = 0, but its momentum still moves it.  Doing that at once would touch all n
columns every round.  Instead every rule can `coast`: play s rounds of g = 0 in one go.  `server_sim.column_table` calls it
when a column is next read.  For FedAvgM it is a closed form,

    w <- w + γ v (β + ... + β^s) = w + γ v β (1 − β^s) / (1 − β),   v <- β^s v

and for FedAdam, whose step is not geometric because of τ, the s rounds are played one by one until what is left of m is
below float32's resolution: at most ~175 of them for β₁ = 0.9, whatever s is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from ondevice.vocabulary import FloatArray, IntArray

OptimizerName = Literal["fedavg", "fedavgm", "fedadam"]

_NEGLIGIBLE = 1e-8
"""A momentum shrunk to this share of itself no longer changes a float32 sum."""


class ServerOptimizer(Protocol):
    """A rule over arrays of any shape.  `moments` are float32 arrays of the parameter's shape, changed in place."""

    initial_moments: tuple[float, ...]
    """What each moment is filled with at the start; as many as the rule keeps."""

    def update(self, weights: FloatArray, moments: Sequence[FloatArray], delta: FloatArray) -> None:
        """One round with the aggregated difference `delta`; weights and moments change in place."""
        ...

    def coast(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        """`rounds[i]` rounds without a difference for row i of weights [k, d]; in place."""
        ...


@dataclass(frozen=True)
class FedAvg:
    learning_rate: float = 1.0
    initial_moments: tuple[float, ...] = ()

    def update(self, weights: FloatArray, moments: Sequence[FloatArray], delta: FloatArray) -> None:  # noqa: ARG002 - keeps no moments
        weights += np.float32(self.learning_rate) * delta

    def coast(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        """Without momentum nothing moves."""


@dataclass(frozen=True)
class FedAvgM:
    learning_rate: float = 1.0
    momentum: float = 0.9
    initial_moments: tuple[float, ...] = (0.0,)

    def update(self, weights: FloatArray, moments: Sequence[FloatArray], delta: FloatArray) -> None:
        (velocity,) = moments
        velocity *= np.float32(self.momentum)
        velocity += delta
        weights += np.float32(self.learning_rate) * velocity

    def coast(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        (velocity,) = moments
        decay = np.power(self.momentum, rounds.astype(np.float64))  # β^s
        travel = self.learning_rate * self.momentum * (1 - decay) / (1 - self.momentum)
        weights += travel.astype(np.float32)[:, None] * velocity
        velocity *= decay.astype(np.float32)[:, None]


@dataclass(frozen=True)
class FedAdam:
    learning_rate: float = 0.01
    momentum: float = 0.9
    second_momentum: float = 0.99
    tau: float = 1e-3

    @property
    def initial_moments(self) -> tuple[float, ...]:
        return (0.0, self.tau**2)

    def update(self, weights: FloatArray, moments: Sequence[FloatArray], delta: FloatArray) -> None:
        first, second = moments
        first *= np.float32(self.momentum)
        first += np.float32(1 - self.momentum) * delta
        second *= np.float32(self.second_momentum)
        second += np.float32(1 - self.second_momentum) * delta * delta
        weights += np.float32(self.learning_rate) * first / (np.sqrt(second) + np.float32(self.tau))

    def coast(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        first, second = moments
        worthwhile = math.ceil(math.log(_NEGLIGIBLE) / math.log(self.momentum)) if self.momentum else 0
        played = np.minimum(rounds, worthwhile)
        for step in range(int(played.max(initial=0))):
            moving = np.flatnonzero(played > step)
            first_now = first[moving] * np.float32(self.momentum ** (step + 1))
            second_now = second[moving] * np.float32(self.second_momentum ** (step + 1))
            weights[moving] += (
                np.float32(self.learning_rate) * first_now / (np.sqrt(second_now) + np.float32(self.tau))
            )
        whole = rounds.astype(np.float64)
        first *= np.power(self.momentum, whole).astype(np.float32)[:, None]
        second *= np.power(self.second_momentum, whole).astype(np.float32)[:, None]
