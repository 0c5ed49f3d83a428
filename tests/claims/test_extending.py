"""A new sampler, weighting, scheme, objective or extractor is one class and one line of registration: toys of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from helpers.tiny_federation import TinyFederation
from helpers.tiny_population import make_tiny_population
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.client.weightings import WEIGHTINGS, WeightingView
from ondevice.contract import safetensors_file, wire
from ondevice.contract.choice import Choice
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, gradient_of, rows_of
from ondevice.contract.vocabulary import (
    COLUMNS,
    ExampleSet,
    FloatArray,
    IntArray,
    LocalTraining,
    RoundPlan,
    RowSample,
    StepSpec,
)
from ondevice.contract.wire import Envelope
from ondevice.model.extractors import ARCHITECTURES, build_extractor
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.objectives import OBJECTIVES
from server_sim.engines.in_process import InProcessLink
from server_sim.engines.simulated_clients import SimulatedClients
from server_sim.experiment import load_experiment
from server_sim.one_round import run_round
from server_sim.preparation import check_experiment, step_spec
from server_sim.schemes import SCHEMES, Scheme
from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate, Aggregator
from server_sim.server.optimizers import FedAvg
from server_sim.server.state import ServerState
from server_sim.simulation import Simulation, initial_rows

# ------------------------------------------------------------------ the toys: each could be a file


@dataclass(frozen=True)
class EveryFew:
    """A sampler with a setting: the positives and every so many rows, of every table that the plan names."""

    step: int

    def draw(self, view: SamplingView) -> RowSample:
        ids = {
            table: np.union1d(view.labels, np.arange(0, size, self.step))
            for table, size in view.plan.table_sizes.items()
        }
        return RowSample(ids, {"adjust": np.zeros(len(ids[COLUMNS]), np.float32)})

    def widest(self, num_positives: int, num_rows: int) -> int:
        return min(num_rows, num_positives + -(-num_rows // self.step))


@dataclass(frozen=True)
class Latest:
    """A weighting with a setting: the last few examples, the later the heavier."""

    count: int

    def examples(self, plan: RoundPlan, labels: IntArray, private_seed: int) -> IntArray:  # noqa: ARG002
        return np.arange(max(0, len(labels) - self.count), len(labels))

    def weights(self, view: WeightingView, batch: IntArray) -> FloatArray:  # noqa: ARG002
        share = (batch + 1).astype(np.float32)
        weights: FloatArray = share / share.sum()
        return weights


class Halving(Scheme):
    """A scheme with a setting, whose server takes half of every mean difference of the classifier."""

    label: ClassVar[str] = "Halving"
    name: Literal["halving"] = "halving"
    step: int = Field(4, ge=1, description="Of its sampler.")

    def sampler(self) -> Choice:
        return Choice("every_few", {"step": self.step})

    def weighting(self) -> Choice:
        return Choice("latest", {"count": 6})

    def before_apply(self, mean: AggregatedUpdate, state: ServerState) -> AggregatedUpdate:  # noqa: ARG002
        halves = {
            table: AggregatedRows(rows.ids, rows.delta * np.float32(0.5))
            for table, rows in mean.tables.items()
        }
        return AggregatedUpdate(mean.dense, halves, mean.num_examples, mean.mean_loss)


class TopicObjective:
    """An objective with two tables, one of them used twice: `columns` classify, and pull an example towards their own."""

    def __init__(self, spec: StepSpec) -> None:
        self._dim = spec.embedding_dim

    def inputs(self) -> tuple[ArraySpec, ...]:
        return (
            ArraySpec(COLUMNS, "table", (rows_of(COLUMNS), self._dim)),
            ArraySpec("topics", "table", (rows_of("topics"), self._dim)),
            ArraySpec("adjust", "side", (rows_of(COLUMNS),), padding=-1e9),
            ArraySpec("labels", "label", (EXAMPLES,), "int64", positions_in=COLUMNS),
            ArraySpec("topic", "label", (EXAMPLES,), "int64", positions_in="topics"),
        )

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        columns, labels = arrays[COLUMNS], arrays["labels"]
        features = embeddings + arrays["topics"].index_select(0, arrays["topic"])
        logits = features @ columns.t() + arrays["adjust"]
        own = columns.index_select(0, labels)
        picked = (logits * F.one_hot(labels, len(columns))).sum(1)
        return torch.logsumexp(logits, 1) - picked + 0.1 * (features - own).square().sum(1)


class Tokens(Extractor):
    """An extractor that takes no images: the mean of six tokens' vectors."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        self.inputs = (ArraySpec("tokens", "feature", (EXAMPLES, 6), "int64"),)
        self.vectors = nn.Embedding(30, 12)
        self.embedding = nn.Linear(12, spec.embedding_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(torch.tanh(self.vectors(tokens).mean(1)))
        return embeddings


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of each registry."""
    monkeypatch.setitem(SAMPLERS, "every_few", EveryFew)
    monkeypatch.setitem(WEIGHTINGS, "latest", Latest)
    monkeypatch.setitem(SCHEMES, "halving", Halving)
    monkeypatch.setitem(OBJECTIVES, "topics", TopicObjective)
    monkeypatch.setitem(ARCHITECTURES, "tokens", f"{__name__}:Tokens")


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
    start = initial_rows(load_experiment("glyphs-tiny"), 20, 16)
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
