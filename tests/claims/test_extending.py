"""A new sampler, weighting, scheme, objective or extractor is one class and one line of registration: toys of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.data.tiny_population import make_tiny_population
from helpers.federations.tiny_federation import TinyFederation
from helpers.networks.toy_extensions import Halving, register
from torch.nn import functional as F

from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.contract import safetensors_file, wire
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import (
    COLUMNS,
    ExampleSet,
    FloatArray,
    LocalTraining,
    RoundPlan,
    StepSpec,
)
from ondevice.contract.wire import Envelope
from ondevice.model.extractors import build_extractor
from server_sim.engines.in_process import InProcessLink
from server_sim.engines.simulated_clients import SimulatedClients
from server_sim.experiment import load_experiment
from server_sim.first_state import initial_rows
from server_sim.one_round import run_round
from server_sim.preparation import check_experiment, step_spec
from server_sim.schemes import Scheme
from server_sim.server.aggregation import Aggregator
from server_sim.server.optimizers import FedAvg
from server_sim.server.state import ServerState
from server_sim.simulation import Simulation


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


# ------------------------------------------------------------------ sampler, weighting and scheme


@pytest.mark.usefixtures("registered")
def test_a_new_sampler_and_weighting_take_part_in_a_round(tiny: TinyFederation) -> None:
    plan = RoundPlan(0, {COLUMNS: 20}, Choice("every_few", {"step": 7}), Choice("latest", {"count": 6}))
    before = tiny.weights.copy()
    report = run_round(tiny.state, plan, [1], tiny.link(), tiny.aggregator())
    assert not report.dropped
    moved = np.flatnonzero((tiny.weights != before).any(1))
    assert set(moved) == {0, 7, 14} | set(tiny.clients[1].labels[5:].tolist())
    assert report.mean_width == len(moved)


@pytest.mark.usefixtures("registered")
def test_a_new_weighting_says_which_examples_count_and_how_much(tiny: TinyFederation) -> None:
    """Against the step itself: one batch of the last six, weighed by their places."""
    training = LocalTraining(batch_size=32, learning_rate=0.5)
    plan = RoundPlan(0, {COLUMNS: 20}, Choice("all_rows"), Choice("latest", {"count": 6}), (), training)
    examples, asked = tiny.clients[0], np.arange(20)

    def answer(question: bytes) -> bytes:
        ids = wire.request_from_bytes(question, Envelope(0, 0), plan.table_sizes)
        return wire.slice_to_bytes(Envelope(0, 0), tiny.state.slice_model(ids))

    message = Client(0, examples, 1, lambda: tiny.backend).converse(plan, answer)
    expected = tiny.state.expected_update()
    update = wire.update_from_bytes(message, Envelope(0, 0), {COLUMNS: asked}, expected)
    assert update.num_examples == 6
    last = np.arange(5, 11)
    step = tiny.backend.step(
        {
            **tiny.state.dense,
            COLUMNS: tiny.weights,
            "adjust": np.zeros(20, np.float32),
            "images": examples.features["images"][last],
            "labels": examples.labels[last],
            "example_weight": ((last + 1) / (last + 1).sum()).astype(np.float32),
        }
    )
    assert update.mean_loss == pytest.approx(float(step["loss"]), rel=1e-5)
    for name, value in {**update.dense, COLUMNS: update.tables[COLUMNS].values}.items():
        np.testing.assert_allclose(value, -0.5 * step[gradient_of(name)], rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("registered")
def test_a_new_scheme_runs_a_whole_experiment_with_its_own_setting_and_hook(tmp_path: Path) -> None:
    population = make_tiny_population(tmp_path / "population")
    tiny = TinyFederation()
    tables = {}
    for hook in (Halving.before_apply, Scheme.before_apply):
        settings = ["scheme.name=halving", "scheme.step=5", "server.rounds=1", "server.optimizer=fedavg"]
        experiment = load_experiment("glyphs-tiny", [*settings, "server.clients_per_round=4"])
        assert experiment.round_plan(0, {COLUMNS: 20}).sampler == Choice("every_few", {"step": 5})
        link = InProcessLink(SimulatedClients(population, tiny.backend, experiment.seed))
        run = tmp_path / hook.__qualname__
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Halving, "before_apply", hook)
            simulation = Simulation(experiment, population, tiny.backend, tiny.initial, link, run)
            lines: list[dict[str, Any]] = []
            summary = simulation.run(resume=False, on_round=lines.append)
        assert lines[0]["num_updates"] == 4
        assert not lines[0]["dropped"]
        assert np.isfinite(summary["mean_loss"])
        tables[hook] = load_columns(run)
    start = initial_rows(load_experiment("glyphs-tiny"), 16)(np.arange(20))
    half, whole = tables[Halving.before_apply] - start, tables[Scheme.before_apply] - start
    assert np.abs(whole).max() > 0
    np.testing.assert_allclose(half, whole / 2, atol=1e-6)


def load_columns(run: Path) -> FloatArray:
    tensors, _ = safetensors_file.read_file(run / "state.safetensors")
    return np.array(tensors["table.columns.weights"])


@pytest.mark.usefixtures("registered")
def test_a_wrong_setting_of_a_new_scheme_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"scheme\.step: Input should be greater than or equal to 1 \(got 0\)"
    ):
        load_experiment("glyphs-tiny", ["scheme.name=halving", "scheme.step=0"])


@pytest.mark.usefixtures("registered")
def test_an_experiment_chooses_a_new_objective_and_extractor_by_name(tmp_path: Path) -> None:
    experiment = load_experiment("glyphs-tiny", ["model.objective=topics", "model.architecture=tokens"])
    check_experiment(experiment)
    spec = step_spec(experiment, make_tiny_population(tmp_path / "population"))
    assert (spec.objective, spec.architecture) == ("topics", "tokens")


# ------------------------------------------------------------------ objective and extractor

SPEC = StepSpec("three_convolutions", 16, (1, 8, 8), objective="topics")
SIZES = {COLUMNS: 20, "topics": 20}
RATE = 0.05


def tables_of(seed: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng(seed)
    return {table: rng.standard_normal((size, 16), np.float32) for table, size in SIZES.items()}


def exact_step(
    spec: StepSpec, dense: Mapping[str, FloatArray], tables: Mapping[str, FloatArray], examples: ExampleSet
) -> tuple[float, dict[str, FloatArray]]:
    """The mean loss and its gradients in float64, with indices and torch's cross entropy: nothing of the toy's code."""
    extractor = build_extractor(spec)
    extractor.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in dense.items()})
    extractor.double()
    columns, topics = (
        torch.from_numpy(tables[name]).double().requires_grad_() for name in (COLUMNS, "topics")
    )
    labels = torch.from_numpy(examples.labels)
    features = extractor(*(torch.from_numpy(value) for value in examples.features.values())) + topics[labels]
    pull = ((features - columns[labels]) ** 2).sum(1).mean()
    loss = F.cross_entropy(features @ columns.T, labels) + 0.1 * pull
    loss.backward()
    leaves = {**dict(extractor.named_parameters()), COLUMNS: columns, "topics": topics}
    gradients = {}
    for name, leaf in leaves.items():
        assert leaf.grad is not None, name
        gradients[name] = leaf.grad.numpy()
    return loss.item(), gradients


@pytest.mark.usefixtures("registered")
def test_a_new_objective_with_two_tables_has_the_gradients_of_float64_autograd(tiny: TinyFederation) -> None:
    backend = EagerBackend(SPEC, tiny.initial)
    assert backend.signature.table_dims == {COLUMNS: 16, "topics": 16}
    examples, tables = tiny.clients[2], tables_of(0)
    result = backend.step(
        {
            **tiny.initial,
            **tables,
            "adjust": np.zeros(20, np.float32),
            **examples.features,
            "labels": examples.labels,
            "topic": examples.labels,
            "example_weight": np.full(len(examples), np.float32(1 / len(examples))),
        }
    )
    loss, gradients = exact_step(SPEC, tiny.initial, tables, examples)
    assert float(result["loss"]) == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        error = np.linalg.norm(result[gradient_of(name)] - gradient) / np.linalg.norm(gradient)
        assert error < 2e-5, name


@pytest.mark.usefixtures("registered")
def test_a_round_of_two_tables_moves_each_by_its_own_gradient(tiny: TinyFederation) -> None:
    """One client, one batch, every row: the server's new state is one step of SGD from the old one."""
    tables = tables_of(1)
    state = round_of(SPEC, tiny.initial, tables, tiny.clients[:1], step=1)
    _, gradients = exact_step(SPEC, tiny.initial, tables, tiny.clients[0])
    for name, gradient in gradients.items():
        before = tables[name] if name in tables else tiny.initial[name]
        after = stored(state, name) if name in tables else state.dense[name]
        np.testing.assert_allclose(after, before - RATE * gradient, atol=2e-6)


@pytest.mark.usefixtures("registered")
def test_a_client_of_two_tables_moves_only_the_rows_it_asked_for(tiny: TinyFederation) -> None:
    tables = tables_of(1)
    state = round_of(SPEC, tiny.initial, tables, tiny.clients[:3], step=6)
    held = {label for client in tiny.clients[:3] for label in client.labels.tolist()}
    sampled = held | {0, 6, 12, 18}
    assert len(sampled) < 20
    columns = np.flatnonzero((stored(state, COLUMNS) != tables[COLUMNS]).any(1))
    topics = np.flatnonzero((stored(state, "topics") != tables["topics"]).any(1))
    assert set(columns) == sampled
    assert set(topics) == held  # a topic that no example has gets no gradient


@pytest.mark.usefixtures("registered")
def test_a_new_extractor_of_tokens_trains_in_a_round() -> None:
    rng = np.random.default_rng(0)
    spec = StepSpec("tokens", 16, objective="topics")
    clients = [ExampleSet({"tokens": rng.integers(0, 30, (9, 6))}, rng.integers(0, 20, 9)) for _ in range(2)]
    initial, tables = initial_parameters(spec, 0), tables_of(2)
    assert [feature.describe() for feature in EagerBackend(spec, initial).signature.features] == [
        "int64 [b, 6]"
    ]
    state = round_of(spec, initial, tables, clients[:1], step=1)
    _, gradients = exact_step(spec, initial, tables, clients[0])
    for name in initial:
        np.testing.assert_allclose(state.dense[name], initial[name] - RATE * gradients[name], atol=2e-6)


def round_of(
    spec: StepSpec,
    initial: Mapping[str, FloatArray],
    tables: Mapping[str, FloatArray],
    clients: list[ExampleSet],
    step: int,
) -> ServerState:
    """The server after one round of one batch per client."""
    backend = EagerBackend(spec, initial)
    state = ServerState.fresh(
        FedAvg(),
        {name: value.copy() for name, value in initial.items()},
        {name: value.copy() for name, value in tables.items()},
    )
    plan = RoundPlan(
        0,
        SIZES,
        Choice("every_few", {"step": step}),
        Choice("uniform"),
        local_training=LocalTraining(batch_size=32, learning_rate=RATE),
    )
    shapes = {table: (size, 16) for table, size in SIZES.items()}
    link = InProcessLink(lambda client_id: Client(client_id, clients[client_id], 7, lambda: backend))
    aggregator = Aggregator(backend.signature.dense_shapes, shapes, "selected")
    report = run_round(state, plan, range(len(clients)), link, aggregator)
    assert not report.dropped
    return state


def stored(state: ServerState, table: str) -> FloatArray:
    return state.tables[table].read_all(state.round_index)
