"""The hash-table scheme: a client finds the rows near its data, and its loss stays an estimate of the whole."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_texts import TIED, VOCABULARY, tiny_texts
from helpers.federations.tiny_federation import TinyFederation, state_bytes

import fedss
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.client.samplers.nearest_rows import NearestRows
from ondevice.contract import wire
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.hashing.simhash import SimHash
from ondevice.contract.link import Ask
from ondevice.contract.messages import lookup
from ondevice.contract.messages.envelope import kind_of
from ondevice.contract.messages.lookup import Lookup
from ondevice.contract.tokens import NUM_SPECIAL
from ondevice.contract.vocabulary import (
    COLUMNS,
    EXCLUDED,
    FloatArray,
    IntArray,
    LocalTraining,
    RoundPlan,
    Rows,
)
from ondevice.contract.wire import Envelope, WireError
from server_sim.engines.in_process import InProcessLink
from server_sim.one_round import RoundAbandoned, RoundReport, RoundRules, run_round
from server_sim.schemes.nearest import Nearest
from server_sim.server.aggregation import Aggregator
from server_sim.server.optimizers import FedAvg, FedAvgM
from server_sim.server.state import ServerState

EVERYTHING = Nearest(num_negatives=8, num_random=3, num_bits=1, num_tables=30)
"""So few and so short hashes that every row is found."""
EXACT = Nearest(num_negatives=8, num_random=3, search="exact")
TRAINING = LocalTraining(batch_size=4, learning_rate=0.1)


def plan_of(scheme: Nearest, num_rows: int, round_index: int = 0) -> RoundPlan:
    sampler = scheme.sampler()
    return RoundPlan(round_index, {COLUMNS: num_rows}, sampler, scheme.weighting(), (), TRAINING)


def play(
    tiny: TinyFederation, scheme: Nearest, rounds: int = 1, rules: RoundRules | None = None
) -> RoundReport:
    rules = replace(rules or RoundRules(), index=scheme.open_index(tiny.state))
    for number in range(tiny.state.round_index, tiny.state.round_index + rounds):
        plan = plan_of(scheme, tiny.num_classes, number)
        report = run_round(tiny.state, plan, [0, 1, 2], tiny.link(), tiny.aggregator(), rules)
        assert not report.dropped, report.dropped
    return report


class Server:
    """Answers a sampler's questions from arrays."""

    def __init__(self, embeddings: FloatArray, rows: FloatArray) -> None:
        self._embeddings, self._rows = embeddings, rows
        self.dim = rows.shape[1]

    def embeddings(self, ids: IntArray) -> FloatArray:
        assert ids.size
        return self._embeddings

    def look_up(self, lookup: Lookup) -> Rows:
        assert lookup.queries is not None
        best = np.argsort(-(self._rows @ lookup.queries.T).max(1))[:12]
        ids = np.sort(best)
        return Rows(ids, self._rows[ids])


def test_the_sum_over_a_sample_estimates_the_sum_over_all_rows_without_bias() -> None:
    source = np.random.default_rng(0)
    rows = source.standard_normal((60, 5)).astype(np.float32)
    embeddings = source.standard_normal((1, 4)).astype(np.float32)
    logits = rows[:, :4] @ embeddings[0] + rows[:, 4]
    sampler = NearestRows(num_negatives=15, num_random=6)
    plan = RoundPlan(0, {COLUMNS: 60}, EXACT.sampler(), EXACT.weighting())
    server = Server(embeddings, rows)
    sums, uniform = [], []
    for seed in range(3000):
        view = SamplingView(plan, np.array([3, 9]), seed, questions=server)
        sample = sampler.draw(view)
        sums.append(np.exp(logits[sample.ids[COLUMNS]] + sample.sides["adjust"]).sum())
        drawn = replace(sampler, num_random=15).draw(view)
        uniform.append(np.exp(logits[drawn.ids[COLUMNS]] + drawn.sides["adjust"]).sum())
    whole = float(np.exp(logits).sum())
    error = np.std(sums) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - whole) < 4 * error
    # Rows near the data hold the large terms: with them the estimate varies less at the same size.
    assert np.std(sums) < 0.5 * np.std(uniform)


def test_without_random_rows_the_estimate_lacks_just_the_rows_that_were_left_out() -> None:
    source = np.random.default_rng(0)
    rows = source.standard_normal((60, 5)).astype(np.float32)
    embeddings = source.standard_normal((1, 4)).astype(np.float32)
    logits = rows[:, :4] @ embeddings[0] + rows[:, 4]
    plan = RoundPlan(0, {COLUMNS: 60}, EXACT.sampler(), EXACT.weighting())
    view = SamplingView(plan, np.array([3, 9]), 1, questions=Server(embeddings, rows))
    sample = NearestRows(num_negatives=9, num_random=0).draw(view)
    ids = sample.ids[COLUMNS]
    assert len(ids) == 11
    left_out = np.setdiff1d(np.arange(60), ids)
    estimate = np.exp(logits[ids] + sample.sides["adjust"]).sum()
    assert estimate == pytest.approx(np.exp(logits).sum() - np.exp(logits[left_out]).sum(), rel=1e-6)
    # Those are the smallest terms, beside the client's own.
    assert logits[left_out].max() < np.sort(logits[np.setdiff1d(ids, [3, 9])])[0]


def test_tables_that_find_everything_train_what_the_exact_search_trains() -> None:
    found, exact = TinyFederation(), TinyFederation()
    play(found, EVERYTHING, rounds=3)
    play(exact, EXACT, rounds=3)
    assert state_bytes(found) == state_bytes(exact)


def test_every_client_trains_its_own_rows_and_as_many_others_as_the_budget_has() -> None:
    tiny = TinyFederation()
    report = play(tiny, EVERYTHING)
    own = np.mean([len(np.unique(tiny.clients[client].labels)) for client in (0, 1, 2)])
    assert report.mean_width == pytest.approx(own + EVERYTHING.num_negatives)


def test_an_index_made_anew_finds_what_the_one_before_would_have_found() -> None:
    """So a resumed run goes on to the same bytes, momentum or not."""
    scheme = Nearest(num_negatives=6, num_random=2, num_bits=3, num_tables=2)
    whole, parted = TinyFederation(0, FedAvgM(1.0, 0.9)), TinyFederation(0, FedAvgM(1.0, 0.9))
    play(whole, scheme, rounds=4)
    play(parted, scheme, rounds=2)
    play(parted, scheme, rounds=2)
    assert state_bytes(whole) == state_bytes(parted)


def test_a_table_of_words_gives_the_rows_that_are_read_and_near_ones_but_no_special_token_competes() -> None:
    initial = initial_parameters(TIED, 0)
    backend = EagerBackend(TIED, initial)
    rows = np.random.default_rng(2).standard_normal((VOCABULARY, TIED.column_dim), np.float32)
    state = ServerState.fresh(FedAvg(), initial, {COLUMNS: rows})
    scheme = Nearest(num_negatives=10, num_random=4, num_bits=2, num_tables=6, of_words=True)
    clients = [Client(number, tiny_texts(9, number), 100 + number, lambda: backend) for number in range(3)]
    aggregator = Aggregator(
        backend.signature.dense_shapes, {COLUMNS: (VOCABULARY, TIED.column_dim)}, "selected"
    )
    rules = RoundRules(index=scheme.open_index(state))
    report = run_round(
        state, plan_of(scheme, VOCABULARY), [0, 1, 2], InProcessLink(clients.__getitem__), aggregator, rules
    )
    assert not report.dropped, report.dropped
    sampler = chosen(SAMPLERS, scheme.sampler(), "sampler")
    assert isinstance(sampler, NearestRows)
    all_random = replace(sampler, num_random=10)
    view = SamplingView(
        plan_of(scheme, VOCABULARY),
        np.array([7]),
        1,
        numbers=lambda _: np.array([5, 6, 7]),
        questions=Server(np.zeros((1, 8), np.float32), rows),
    )
    sample = all_random.draw(view)
    assert np.array_equal(sample.sides["adjust"][:NUM_SPECIAL], np.full(NUM_SPECIAL, EXCLUDED))
    assert {5, 6, 7} <= set(sample.ids[COLUMNS].tolist())


def test_a_graph_finds_most_of_what_the_exact_search_finds_and_nothing_twice() -> None:
    source = np.random.default_rng(5)
    rows = source.standard_normal((3000, 16)).astype(np.float32)
    rows *= source.uniform(0.2, 5, (3000, 1)).astype(np.float32)
    state = ServerState.fresh(FedAvg(), {}, {COLUMNS: rows})
    queries = source.standard_normal((12, 16)).astype(np.float32)
    question = lookup.lookup_to_bytes(ENVELOPE, Lookup(queries=queries))
    for norm_bound in (0.0, 1.0):
        graph, exact = (
            Nearest(search=search, max_found=100, norm_bound=norm_bound).open_index(state)
            for search in ("graph", "exact")
        )
        found, whole = graph.find(ENVELOPE, question), exact.find(ENVELOPE, question)
        assert len(found) == 100
        assert (np.diff(found) > 0).all()
        assert len(np.intersect1d(found, whole)) >= 90


def test_a_graph_sees_rows_that_moved_and_is_the_same_when_it_is_made_anew() -> None:
    scheme = Nearest(num_negatives=6, num_random=2, search="graph", max_found=7)
    whole, parted, still = TinyFederation(), TinyFederation(), TinyFederation()
    play(whole, scheme, rounds=3)
    play(parted, scheme, rounds=1)
    play(parted, scheme, rounds=2)
    assert state_bytes(whole) == state_bytes(parted)
    index = scheme.open_index(still.state)
    query = lookup.lookup_to_bytes(ENVELOPE, Lookup(queries=np.ones((1, 16), np.float32)))
    before = index.find(ENVELOPE, query)
    away = np.setdiff1d(np.arange(still.num_classes), before)[:1]
    still.weights[away] = 1
    index.refresh(away)
    assert away[0] in index.find(ENVELOPE, query)


def test_a_graph_without_faiss_is_refused_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"takes faiss: pip install .*\[index\]"):
        Nearest(search="graph").check_installed()
    Nearest().check_installed()


ENVELOPE = Envelope(4, 2)
HASHES = SimHash(num_bits=5, num_tables=2, dim=3, seed=0)


@pytest.mark.parametrize(
    ("buckets", "reason"),
    [
        ([0, 64], "expected 1 or more below 64"),
        ([], "expected 1 or more below 64"),
        ([-1, 3], "row_ids start at -1"),
        ([3, 3], "sorted and unique"),
    ],
)
def test_buckets_that_the_tables_do_not_have_are_refused(buckets: list[int], reason: str) -> None:
    message = lookup.lookup_to_bytes(ENVELOPE, Lookup(np.array(buckets, np.int64), HASHES.fingerprint))
    with pytest.raises(WireError, match=reason):
        lookup.buckets_from_bytes(message, ENVELOPE, HASHES)


@pytest.mark.parametrize("other", [replace(HASHES, seed=1), replace(HASHES, num_bits=4, num_tables=4)])
def test_buckets_of_other_tables_are_refused_though_they_are_in_range(other: SimHash) -> None:
    assert other.num_buckets == HASHES.num_buckets
    message = lookup.lookup_to_bytes(ENVELOPE, Lookup(np.array([3, 9]), other.fingerprint))
    reason = (
        f"with the fingerprint {other.fingerprint}; those of the server's tables have {HASHES.fingerprint}"
    )
    with pytest.raises(WireError, match=reason):
        lookup.buckets_from_bytes(message, ENVELOPE, HASHES)
    assert np.array_equal(lookup.buckets_from_bytes(message, ENVELOPE, other), [3, 9])


@pytest.mark.parametrize("change", [{"hash_seed": 1}, {"num_tables": 9}, {"fingerprint": 1}])
def test_a_plan_whose_hash_functions_are_not_this_clients_is_refused(change: dict[str, int]) -> None:
    sampler = EVERYTHING.sampler()
    with pytest.raises(
        ValueError, match=r"here, the plan says .*: client and server are of different versions"
    ):
        chosen(SAMPLERS, Choice(sampler.name, {**sampler.settings, **change}), "sampler")


def test_an_extractor_that_reads_no_rows_tells_nothing_of_its_clients_classes_and_has_phi_once(
    tiny: TinyFederation,
) -> None:
    exchanged: list[tuple[bytes, bytes]] = []

    class Overheard:
        def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
            def heard(question: bytes) -> bytes:
                exchanged.append((question, ask(question)))
                return exchanged[-1][1]

            return tiny.client(1).converse(plan, heard)

    plan, rules = plan_of(EVERYTHING, tiny.num_classes), RoundRules(index=EVERYTHING.open_index(tiny.state))
    run_round(tiny.state, plan, [1], InProcessLink(lambda _: Overheard()), tiny.aggregator(), rules)
    assert [kind_of(question) for question, _ in exchanged] == ["request", "lookup", "rows"]
    first = wire.request_from_bytes(exchanged[0][0], Envelope(0, 1), plan.table_sizes)
    assert first[COLUMNS].tolist() == [0]
    phi = sum(value.nbytes for value in tiny.initial.values())
    assert len(exchanged[0][1]) > phi > 4 * len(exchanged[2][1])


def test_look_ups_of_another_kind_size_or_round_are_refused() -> None:
    queries = lookup.lookup_to_bytes(ENVELOPE, Lookup(queries=np.ones((2, 5), np.float32)))
    assert np.array_equal(lookup.queries_from_bytes(queries, ENVELOPE, 5), np.ones((2, 5)))
    for read, reason in (
        (lambda: lookup.queries_from_bytes(queries, ENVELOPE, 6), "expected F32, F16 or BF16"),
        (lambda: lookup.buckets_from_bytes(queries, ENVELOPE, HASHES), "tensors missing: .'buckets'"),
        (lambda: lookup.queries_from_bytes(queries, Envelope(5, 2), 5), "for round '4'"),
        (lambda: lookup.found_from_bytes(queries, ENVELOPE, COLUMNS, 9, 5), "is a 'lookup'"),
    ):
        with pytest.raises(WireError, match=reason):
            read()
    none = lookup.lookup_to_bytes(ENVELOPE, Lookup(queries=np.ones((0, 5), np.float32)))
    with pytest.raises(WireError, match="at least one"):
        lookup.queries_from_bytes(none, ENVELOPE, 5)


def test_a_look_up_where_the_server_has_no_index_costs_its_client_and_says_so(tiny: TinyFederation) -> None:
    before = state_bytes(tiny)
    with pytest.raises(RoundAbandoned, match="is a 'lookup'; expected a 'request'"):
        run_round(tiny.state, plan_of(EVERYTHING, tiny.num_classes), [0], tiny.link(), tiny.aggregator())
    assert state_bytes(tiny) == before


def test_a_run_with_hash_tables_that_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    settings = {
        "scheme.name": "nearest",
        "scheme.num_negatives": 10,
        "scheme.num_random": 3,
        "scheme.num_bits": 3,
    }
    whole = fedss.simulate("glyphs-tiny", rounds=3, out=tmp_path / "whole", overrides=settings)
    rounds = 0

    def stop() -> bool:
        return rounds >= 1

    def count(_: object) -> None:
        nonlocal rounds
        rounds += 1

    with pytest.raises(fedss.Interrupted):
        fedss.simulate(
            "glyphs-tiny", rounds=3, out=tmp_path / "parted", overrides=settings, on_round=count, stop=stop
        )
    parted = fedss.simulate("glyphs-tiny", rounds=3, out=tmp_path / "parted", overrides=settings, resume=True)
    assert (whole.path / "state.safetensors").read_bytes() == (parted.path / "state.safetensors").read_bytes()
