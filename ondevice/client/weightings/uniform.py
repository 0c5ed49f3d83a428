"""Every example once per epoch, all alike: the mean of FedAvg and of FedSS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondevice.client.weightings.weighting import WeightingView
from ondevice.contract.vocabulary import FloatArray, IntArray, RoundPlan


@dataclass(frozen=True)
class Uniform:
    """1/B each."""

    def examples(self, plan: RoundPlan, labels: IntArray, private_seed: int) -> IntArray:  # noqa: ARG002
        return np.arange(len(labels))

    def weights(self, view: WeightingView, batch: IntArray) -> FloatArray:  # noqa: ARG002
        return np.full(len(batch), np.float32(1 / len(batch)))
