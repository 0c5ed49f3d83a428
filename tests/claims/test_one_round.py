"""The tiny test: a whole round, top to bottom.  Run it before every commit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan

from ondevice.contract.choice import Choice, UnknownChoice
from ondevice.contract.vocabulary import COLUMNS, LocalTraining
from server_sim.one_round import run_round

NUM_NEGATIVES = 3
TRAINING = LocalTraining(batch_size=4, learning_rate=0.1)
PLAN = tiny_plan(0, NUM_NEGATIVES, TRAINING)


def test_a_round_moves_the_extractor_and_the_sampled_columns_and_counts_every_byte(
    tiny: TinyFederation,
) -> None:
    dense = {name: value.copy() for name, value in tiny.state.dense.items()}
    columns = tiny.weights.copy()

    report = run_round(tiny.state, PLAN, [0, 2], tiny.link(), tiny.aggregator())

    assert report.num_updates == 2
    assert not report.dropped
    assert tiny.state.round_index == 1
    for name, before in dense.items():
        assert not np.array_equal(before, tiny.state.dense[name]), name
    moved = np.flatnonzero((tiny.weights != columns).any(1))
    held = set(tiny.clients[0].labels) | set(tiny.clients[2].labels)
    assert held <= set(moved)
    assert len(moved) <= len(held) + 2 * NUM_NEGATIVES
    model_bytes = 4 * sum(value.size for value in dense.values())
    assert report.bytes_down > 2 * model_bytes
    assert report.bytes_up > 2 * model_bytes


def test_the_same_seeds_give_the_same_round() -> None:
    first, second = TinyFederation(), TinyFederation()
    for federation in (first, second):
        run_round(federation.state, PLAN, [1, 3], federation.link(), federation.aggregator())
    assert state_bytes(first) == state_bytes(second)


def test_repeated_rounds_lower_the_loss() -> None:
    federation = TinyFederation()
    losses = []
    for round_index in range(8):
        plan = tiny_plan(round_index, NUM_NEGATIVES, TRAINING)
        losses.append(
            run_round(
                federation.state, plan, [0, 1, 2, 3], federation.link(), federation.aggregator()
            ).mean_loss
        )
    assert losses[-1] < 0.8 * losses[0]


def test_bytes_per_round_do_not_depend_on_the_number_of_classes() -> None:
    """Ten times the classes, the same slice: what is sent grows with |S_k| alone."""
    sizes = []
    for num_classes in (20, 200):
        federation = TinyFederation()
        federation.num_classes = num_classes
        federation.state = type(federation.state).fresh(
            federation.state.optimizer, federation.state.dense, {COLUMNS: federation.columns()}
        )
        plan = tiny_plan(num_classes=num_classes)
        report = run_round(federation.state, plan, [0], federation.link(), federation.aggregator())
        sizes.append((report.bytes_down, report.bytes_up))
    assert sizes[0] == sizes[1]


def test_a_client_says_what_it_lacks_before_it_asks_for_anything(tiny: TinyFederation) -> None:
    plan = replace(PLAN, transforms=(Choice("noise", {"sigma": 1.0}),))
    questions: list[bytes] = []

    def ask(question: bytes) -> bytes:
        questions.append(question)
        return b""

    with pytest.raises(UnknownChoice, match="no transform 'noise'"):
        tiny.client(0).converse(plan, ask)
    assert not questions
