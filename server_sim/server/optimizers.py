"""How the server applies an aggregated difference g: FedAvg, FedAvgM, FedAdam.  One rule serves φ and the rows of tables.

    FedAvg    θ <- θ + γ g
    FedAvgM   v <- β v + g;                                   θ <- θ + γ v                 (FedVC Eq. 5; FedSS A.2)
    FedAdam   m <- β₁ m + (1 − β₁) g;  v <- β₂ v + (1 − β₂) g²;  θ <- θ + γ m / (√v + τ)    (Reddi et al. 2021, Alg. 2)

Deltas are client − server, so the server *adds*.

A row that nobody sampled in a round has g = 0, but its momentum still moves it.  Doing that at once would touch all n
rows every round.  Instead every rule can play s rounds of g = 0 in one go: `drift` says where the weights have gone by
then, `fade` what is left of the moments.  `server_sim.server.row_table` asks when a row is next read or updated.  For
FedAvgM it is a closed form,

    w <- w + γ v (β + ... + β^s) = w + γ v β (1 − β^s) / (1 − β),   v <- β^s v

and for FedAdam, whose step is not geometric because of τ, the s rounds are played one by one until what is left of m is
below float32's resolution: at most ~175 of them for β₁ = 0.9, whatever s is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray

OptimizerName = Literal["fedavg", "fedavgm", "fedadam"]

_NEGLIGIBLE = 1e-8
"""A momentum shrunk to this share of itself no longer changes a float32 sum."""


class ServerOptimizer(Protocol):
    """A rule over arrays of any shape.  `moments` are float32 arrays of the parameter's shape, changed in place."""

    @property
    def initial_moments(self) -> tuple[float, ...]:
        """What each moment is filled with at the start; as many as the rule keeps."""
        ...

    def update(self, weights: FloatArray, moments: Sequence[FloatArray], delta: FloatArray) -> None:
        """One round with the aggregated difference `delta`; weights and moments change in place."""
        ...

    def drift(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        """Move row i of weights [k, d] as `rounds[i]` rounds without a difference would; in place."""
        ...

    def fade(self, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        """What the same rounds leave of the moments; in place."""
        ...


@dataclass(frozen=True)
class FedAvg:
    learning_rate: float = 1.0
    initial_moments: tuple[float, ...] = ()

    def update(self, weights: FloatArray, moments: Sequence[FloatArray], delta: FloatArray) -> None:  # noqa: ARG002 - keeps no moments
        weights += delta if self.learning_rate == 1 else np.float32(self.learning_rate) * delta

    def drift(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        """Without momentum nothing moves."""

    def fade(self, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        """There is nothing to fade."""


@dataclass(frozen=True)
class FedAvgM:
    learning_rate: float = 1.0
    momentum: float = 0.9
    initial_moments: tuple[float, ...] = (0.0,)

    def update(self, weights: FloatArray, moments: Sequence[FloatArray], delta: FloatArray) -> None:
        (velocity,) = moments
        velocity *= np.float32(self.momentum)
        velocity += delta
        weights += velocity if self.learning_rate == 1 else np.float32(self.learning_rate) * velocity

    def drift(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        (velocity,) = moments
        weights += self.travel.take(rounds, mode="clip")[:, None] * velocity

    def fade(self, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        (velocity,) = moments
        velocity *= self.decay.take(rounds, mode="clip")[:, None]

    @cached_property
    def decay(self) -> FloatArray:
        return _decay(self.momentum)

    @cached_property
    def travel(self) -> FloatArray:
        """γ (β + ... + β^s) for every s of `decay`."""
        powers = np.power(self.momentum, np.arange(len(self.decay), dtype=np.float64))
        return (self.learning_rate * self.momentum * (1 - powers) / (1 - self.momentum)).astype(np.float32)


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

    def drift(self, weights: FloatArray, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        first, second = moments
        decays = list(zip(*self.step_decays, strict=True))
        played = np.minimum(rounds, len(decays))
        for step in range(int(played.max(initial=0))):
            moving = np.flatnonzero(played > step)
            decay, second_decay = decays[step]
            first_now = first[moving] * decay
            second_now = second[moving] * second_decay
            weights[moving] += (
                np.float32(self.learning_rate) * first_now / (np.sqrt(second_now) + np.float32(self.tau))
            )

    def fade(self, moments: Sequence[FloatArray], rounds: IntArray) -> None:
        first, second = moments
        first *= self.decay.take(rounds, mode="clip")[:, None]
        second *= self.second_decay.take(rounds, mode="clip")[:, None]

    @cached_property
    def decay(self) -> FloatArray:
        return _decay(self.momentum)

    @cached_property
    def second_decay(self) -> FloatArray:
        return _decay(self.second_momentum)

    @cached_property
    def step_decays(self) -> tuple[FloatArray, FloatArray]:
        """β₁^s and β₂^s for s = 1 ... as long as a round without a difference still moves a weight."""
        worthwhile = math.ceil(math.log(_NEGLIGIBLE) / math.log(self.momentum)) if self.momentum else 0
        first, second = (
            np.array([momentum ** (step + 1) for step in range(worthwhile)], np.float32)
            for momentum in (self.momentum, self.second_momentum)
        )
        return first, second


def _decay(momentum: float) -> FloatArray:
    """β^s for every s until it is 0 in float32: looked up, because powers would cost more than moving the row."""
    longest = math.ceil(math.log(1e-46) / math.log(momentum)) if momentum else 1
    return np.power(momentum, np.arange(longest + 1, dtype=np.float64)).astype(np.float32)
