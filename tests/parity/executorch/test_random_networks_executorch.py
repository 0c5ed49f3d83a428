"""The rewrite for ExecuTorch on random networks: run in float64, each is autograd to the last digits."""

from __future__ import annotations

import pytest
from helpers.artifacts.runtime_artifact import random_step_inputs
from helpers.networks.random_networks import random_network

from benchmarks.random_networks import wide_network
from export.proof.rewrite_check import rewrite_errors

NETWORKS, WIDE_NETWORKS = 100, 30
MICRO_BATCH, WIDTH = 2, 5


@pytest.mark.parametrize("first", range(0, NETWORKS, 50))
def test_a_rewritten_network_is_right(first: int) -> None:
    for seed in range(first, first + 50):
        network = random_network(seed)
        step = network.step("dot")
        errors = rewrite_errors(step, random_step_inputs(step.signature, WIDTH, MICRO_BATCH, seed))
        assert not errors, f"{network.description}: wrong in {', '.join(errors)}"


@pytest.mark.parametrize("first", range(0, WIDE_NETWORKS, 30))
def test_a_network_of_all_that_people_write_is_right(first: int) -> None:
    # The last one: a norm that is decomposed lays its output otherwise, and forbids the view that was taken of it.
    for seed in (*range(first, first + 30), 48):
        network = wide_network(seed)
        errors = rewrite_errors(
            network.step, random_step_inputs(network.step.signature, WIDTH, MICRO_BATCH, seed)
        )
        assert not errors, f"{network.description}: wrong in {', '.join(errors)}"
