"""The tiny test: a whole round, top to bottom.  Run it before every commit."""

from __future__ import annotations

import numpy as np
from helpers.tiny_federation import TinyFederation

from ondevice.contract.vocabulary import LocalTraining, RoundPlan
from server_sim.one_round import run_round

PLAN = RoundPlan(
    0, TinyFederation.num_classes, 3, local_training=LocalTraining(batch_size=4, learning_rate=0.1)
)


def test_a_round_moves_the_extractor_and_the_sampled_columns_and_counts_every_byte(
    tiny: TinyFederation,
) -> None:
    extractor = {name: value.copy() for name, value in tiny.state.extractor.items()}
    columns = tiny.state.columns.class_weights.copy()

    report = run_round(tiny.state, PLAN, [0, 2], tiny.link(), tiny.aggregator())

    assert report.num_updates == 2
    assert not report.dropped
    assert tiny.state.round_index == 1
    for name, before in extractor.items():
        assert not np.array_equal(before, tiny.state.extractor[name]), name
    moved = np.flatnonzero((tiny.state.columns.class_weights != columns).any(1))
    held = set(tiny.clients[0].labels) | set(tiny.clients[2].labels)
    assert held <= set(moved)
    assert len(moved) <= len(held) + 2 * PLAN.num_negatives
    model_bytes = 4 * sum(value.size for value in extractor.values())
    assert report.bytes_down > 2 * model_bytes
    assert report.bytes_up > 2 * model_bytes


def test_the_same_seeds_give_the_same_round() -> None:
    first, second = TinyFederation(), TinyFederation()
    for federation in (first, second):
        run_round(federation.state, PLAN, [1, 3], federation.link(), federation.aggregator())
    assert np.array_equal(first.state.columns.class_weights, second.state.columns.class_weights)
    for name, value in first.state.extractor.items():
        assert np.array_equal(value, second.state.extractor[name])


def test_repeated_rounds_lower_the_loss() -> None:
    federation = TinyFederation()
    losses = []
    for round_index in range(8):
        plan = RoundPlan(round_index, federation.num_classes, 3, local_training=PLAN.local_training)
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
            federation.state.columns.optimizer, federation.state.extractor, federation.columns()
        )
        plan = RoundPlan(0, num_classes, 3)
        report = run_round(federation.state, plan, [0], federation.link(), federation.aggregator())
        sizes.append((report.bytes_down, report.bytes_up))
    assert sizes[0] == sizes[1]
