"""FedVC and FedIR (Hsu, Qi and Brown 2020) against plain references, and the identities that the paper states."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan

from ondevice.client.weightings import WEIGHTINGS, WeightingView
from ondevice.client.weightings.importance import CLASS_SHARE, Importance
from ondevice.client.weightings.virtual_clients import VirtualClients
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.vocabulary import COLUMNS, ExampleSet, FloatArray, IntArray, RoundPlan
from server_sim.one_round import RoundRules, run_round
from server_sim.schemes.client_scheme import ClientScheme
from server_sim.schemes.fedss import FedSS
from server_sim.schemes.full_softmax import FullSoftmax
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer
from server_sim.server.state import SideTable

OPTIMIZERS = [FedAvg(), FedAvgM(), FedAdam()]
COMBINATIONS = [
    FullSoftmax(virtual_clients=6),
    FullSoftmax(importance="population"),
    FedSS(num_negatives=3, virtual_clients=16, importance="population"),
]


def plan_of(scheme: ClientScheme, round_index: int, sides: dict[str, SideTable] | None = None) -> RoundPlan:
    sampler = scheme.sampler()
    assert sampler is not None
    return replace(
        tiny_plan(round_index),
        sampler=sampler,
        weighting=scheme.weighting(),
        sides={name: side.table for name, side in (sides or {}).items()},
    )


def class_shares(clients: list[ExampleSet]) -> dict[str, SideTable]:
    labels = np.concatenate([examples.labels for examples in clients])
    counts = np.bincount(labels, minlength=TinyFederation.num_classes)
    return {CLASS_SHARE: SideTable(COLUMNS, (counts / counts.sum()).astype(np.float32))}


# ------------------------------------------------------------------ FedVC


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda rule: type(rule).__name__)
def test_virtual_clients_are_fedavg_when_all_clients_have_the_same_size(optimizer: ServerOptimizer) -> None:
    federations = []
    for scheme in (FullSoftmax(), FullSoftmax(virtual_clients=11)):
        tiny = TinyFederation(optimizer=optimizer)
        assert {len(examples) for examples in tiny.clients} == {11}
        for round_index in range(2):
            run_round(tiny.state, plan_of(scheme, round_index), range(4), tiny.link(), tiny.aggregator())
        federations.append(state_bytes(tiny))
    assert federations[0] == federations[1]


def test_a_large_client_gives_every_example_alike_and_none_twice_and_a_small_one_repeats_its_own() -> None:
    plan = tiny_plan()
    drawn: dict[int, Counter[int]] = {20: Counter(), 3: Counter()}
    for held, counter in drawn.items():
        for seed in range(3000):
            positions = VirtualClients(8).examples(plan, np.zeros(held, np.int64), seed)
            assert len(positions) == 8
            assert held < 8 or len(set(positions.tolist())) == 8
            counter.update(positions.tolist())
        shares = np.array([counter[position] for position in range(held)]) / counter.total()
        # Five standard deviations of 24,000 draws.
        np.testing.assert_allclose(shares, 1 / held, atol=5 * np.sqrt(1 / held / 24_000))
    rounds = [
        VirtualClients(8).examples(tiny_plan(index), np.zeros(20, np.int64), 7).tolist() for index in (0, 1)
    ]
    assert rounds[0] != rounds[1]


def test_the_mean_over_virtual_clients_is_plain_whatever_they_hold() -> None:
    tiny = TinyFederation()
    tiny.clients = [tiny.examples(count) for count in (3, 40, 6)]
    scheme = FullSoftmax(virtual_clients=6)
    plan = plan_of(scheme, 0)
    before = {name: value.copy() for name, value in tiny.state.dense.items()}
    alone = []
    for client_id, examples in enumerate(tiny.clients):
        # The plain reference: a client that holds exactly what was drawn, trained by itself as in FedAvg.
        single = TinyFederation()
        positions = VirtualClients(6).examples(plan, examples.labels, 100 + client_id)
        features = {name: feature[positions] for name, feature in examples.features.items()}
        single.clients[client_id] = ExampleSet(features, examples.labels[positions])
        run_round(single.state, plan_of(FullSoftmax(), 0), [client_id], single.link(), single.aggregator())
        alone.append({name: single.state.dense[name] - before[name] for name in before})
    report = run_round(tiny.state, plan, range(3), tiny.link(), tiny.aggregator())
    assert report.num_updates == 3
    for name, value in before.items():
        expected = value + np.mean([moved[name] for moved in alone], axis=0)
        np.testing.assert_allclose(tiny.state.dense[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_virtual_clients_are_chosen_by_their_size_and_may_claim_more_than_the_largest_holds() -> None:
    assert (FullSoftmax().selection, FullSoftmax().most_examples(40)) == ("uniform", 40)
    scheme = FullSoftmax(virtual_clients=256)
    assert (scheme.selection, scheme.most_examples(40)) == ("proportional", 256)
    assert scheme.title == "FullSoftmax + FedVC 256"
    both = FedSS(num_negatives=5, virtual_clients=8, importance="population")
    assert both.title == "FedSS 5 + FedVC 8 + FedIR"


# ------------------------------------------------------------------ FedIR


def view_of(labels: IntArray, shares: FloatArray) -> WeightingView:
    return WeightingView(tiny_plan(), labels, {COLUMNS: np.arange(len(shares))}, {CLASS_SHARE: shares}, 0)


def test_weights_are_those_of_equation_4_in_plain_lines() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 40)
    target = rng.dirichlet(np.ones(5)).astype(np.float32)
    batch = rng.integers(0, 40, 16)
    found = Importance(0).weights(view_of(labels, target), batch)
    ratios = []
    for position in batch:
        own = sum(label == labels[position] for label in labels) / len(labels)
        ratios.append(float(target[labels[position]]) / own)
    np.testing.assert_allclose(found, np.array(ratios) / sum(ratios), rtol=1e-6)
    assert found.sum() == pytest.approx(1, abs=1e-6)


def test_the_weighted_loss_is_an_unbiased_estimate_of_the_loss_over_the_target() -> None:
    rng = np.random.default_rng(1)
    target = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    labels = np.repeat([0, 1, 2, 3], [60, 20, 15, 5])
    losses = rng.standard_normal(4)[labels] + 0.1 * rng.standard_normal(len(labels))
    expected = sum(target[label] * losses[labels == label].mean() for label in range(4))
    view = view_of(labels, target)
    # Over all of a client's examples at once the estimate is exact.
    everything = np.arange(len(labels))
    weights = Importance(0).weights(view, everything)
    assert float(weights @ losses) == pytest.approx(expected, rel=1e-5)
    # Over batches: w times the loss has the right mean.  The weights over all examples are p/q up to one factor.
    estimates, plain = [], []
    for _ in range(4000):
        batch = rng.integers(0, len(labels), 8)
        estimates.append(np.mean(weights[batch] * len(labels) * losses[batch]))
        plain.append(losses[batch].mean())
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - expected) < 4 * error
    assert abs(np.mean(plain) - expected) > 20 * error
    # Eq. 4 divides by the batch's own sum: what bias that brings fades with the size of the batch.
    bias = {}
    for size in (8, 400):
        batches = rng.integers(0, len(labels), (800, size))
        found = [float(Importance(0).weights(view, batch) @ losses[batch]) for batch in batches]
        bias[size] = abs(np.mean(found) - expected)
    assert bias[400] < 0.02 < abs(np.mean(plain) - expected)


def test_clients_that_are_like_the_target_weigh_everything_alike() -> None:
    labels = np.repeat(np.arange(4), 5)
    weights = Importance(0).weights(view_of(labels, np.full(4, 0.25, np.float32)), np.arange(20))
    assert weights.tobytes() == np.full(20, np.float32(1 / 20)).tobytes()


@pytest.mark.parametrize("share", [np.nan, -0.5, np.inf, 0.0])
def test_shares_that_are_none_are_refused(share: float) -> None:
    labels = np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="class_share for a batch"):
        Importance(0).weights(view_of(labels, np.array([share], np.float32)), np.arange(3))


def test_a_slice_without_shares_is_refused() -> None:
    view = WeightingView(tiny_plan(), np.zeros(3, np.int64), {COLUMNS: np.arange(1)}, {}, 0)
    with pytest.raises(ValueError, match="no side array 'class_share'"):
        Importance(0).weights(view, np.arange(3))


@pytest.mark.parametrize(
    ("name", "count", "words"), [("virtual_clients", 0, "expected 1"), ("importance", -1, "expected 0")]
)
def test_a_draw_of_no_examples_is_refused(name: str, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=f"num_examples is {count}; {words} or more"):
        chosen(WEIGHTINGS, Choice(name, {"num_examples": count}), "weighting")


# ------------------------------------------------------------------ together


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("scheme", COMBINATIONS, ids=lambda scheme: scheme.title)
def test_every_combination_plays_rounds_over_the_wire(
    scheme: ClientScheme, optimizer: ServerOptimizer
) -> None:
    tiny = TinyFederation(optimizer=optimizer)
    tiny.clients = [tiny.examples(count) for count in (4, 11, 30)]
    sides = class_shares(tiny.clients) if scheme.importance != "off" else {}
    rules = RoundRules(min_clients=3, sides=sides)
    aggregator = tiny.aggregator()
    before = state_bytes(tiny)
    for round_index in range(2):
        plan = plan_of(scheme, round_index, sides)
        report = run_round(tiny.state, plan, range(3), tiny.link(), aggregator, rules)
        assert not report.dropped
        assert np.isfinite(report.mean_loss)
    assert state_bytes(tiny) != before
