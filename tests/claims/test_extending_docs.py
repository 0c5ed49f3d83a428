"""The worked examples of docs/extending.md: each block is taken from the page, imported as a file, and trained with."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from helpers.data.tiny_population import make_tiny_population
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan
from torch.nn import functional as F

from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.client.client import Client
from ondevice.client.samplers import SAMPLERS
from ondevice.contract.choice import Choice
from ondevice.contract.link import Ask
from ondevice.contract.vocabulary import COLUMNS, FloatArray, RoundPlan, StepSpec
from ondevice.model.extractors import ARCHITECTURES
from ondevice.model.objectives import OBJECTIVES
from server_sim.data.population import Population, open_population
from server_sim.engines import ENGINES, EngineSettings, open_engine
from server_sim.engines.in_process import InProcessLink
from server_sim.engines.simulated_clients import SimulatedClients
from server_sim.experiment import load_experiment
from server_sim.one_round import run_round
from server_sim.preparation import check_experiment, initial_weights, step_spec
from server_sim.schemes import SCHEMES
from server_sim.simulation import Simulation

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
SECTIONS = ["A model", "A sampler and its scheme", "An objective", "A data set", "An engine"]


def blocks(language: str) -> dict[str, list[str]]:
    """The fenced blocks of a language by the heading that they stand under."""
    found: dict[str, list[str]] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        inside = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if inside:
            found[heading] = inside
    return found


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    registries: list[dict[str, Any]] = [ARCHITECTURES, ENGINES, OBJECTIVES, SAMPLERS, SCHEMES]
    before = [dict(registry) for registry in registries]
    yield
    for registry, members in zip(registries, before, strict=True):
        registry.clear()
        registry.update(members)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The block under the test's heading, imported from a file of its own."""
    (code,) = blocks("python")[request.param]
    path = tmp_path / "example_of_the_page.py"
    path.write_text(code)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def of_section(heading: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("example", [heading], indirect=True, ids=[heading])


def settings_of(heading: str) -> list[str]:
    """The page's settings as they would stand on a command line."""
    (text,) = blocks("toml")[heading]
    sections = tomllib.loads(text).items()
    return [f"{section}.{name}={value}" for section, values in sections for name, value in values.items()]


def simulated(population: Population, run: Path, *settings: str) -> dict[str, Any]:
    """The summary of an experiment with these settings, two rounds of four clients unless they say otherwise."""
    small = ["server.rounds=2", "server.clients_per_round=4", "evaluation.every=2", "model.embedding_dim=16"]
    experiment = load_experiment("glyphs-tiny", [*small, "model.pretrained=none", *settings])
    check_experiment(experiment)
    spec = step_spec(experiment, population)
    initial = initial_weights(experiment, spec)
    backend = EagerBackend(spec, initial)
    link = InProcessLink(SimulatedClients(population, backend, experiment.seed))
    simulation = Simulation(experiment, population, backend, initial, link, run)
    summary = simulation.run(resume=False, on_round=lambda _: None)
    assert summary["dropped_clients"] == 0
    assert np.isfinite(summary["mean_loss"])
    return summary


def test_every_section_has_one_example_and_every_example_a_test() -> None:
    assert {heading: len(found) for heading, found in blocks("python").items()} == dict.fromkeys(SECTIONS, 1)


@of_section("A model")
def test_the_model_of_the_page_trains(example: ModuleType, tmp_path: Path) -> None:
    population = make_tiny_population(tmp_path / "population")
    assert simulated(population, tmp_path / "run", *settings_of("A model"))["rounds"] == 2
    spec = StepSpec("patches", 16, (1, 8, 8))
    initial = initial_parameters(spec, 0)
    assert set(initial) == {name for name, _ in example.Patches(spec).named_parameters()}
    whole, halves = step_of(spec, slice(0, 11)), [step_of(spec, part) for part in (slice(0, 5), slice(5, 11))]
    for name in initial:
        gradient = f"gradient/{name}"
        assert np.abs(whole[gradient]).max() > 0, name
        # Every example by itself: micro-batches add up.
        together = 5 / 11 * halves[0][gradient] + 6 / 11 * halves[1][gradient]
        np.testing.assert_allclose(together, whole[gradient], atol=2e-6 * np.abs(whole[gradient]).max())


def step_of(spec: StepSpec, part: slice) -> dict[str, FloatArray]:
    """One step with fresh weights on some of a tiny client's examples, as their mean."""
    tiny = TinyFederation()
    initial, examples = initial_parameters(spec, 0), tiny.clients[0]
    labels = examples.labels[part]
    arrays = {
        **initial,
        COLUMNS: tiny.columns(),
        "adjust": np.zeros(20, np.float32),
        "images": examples.features["images"][part],
        "labels": labels,
        "example_weight": np.full(len(labels), np.float32(1 / len(labels))),
    }
    return dict(EagerBackend(spec, initial).step(arrays))


@of_section("A sampler and its scheme")
def test_the_scheme_of_the_page_draws_frequent_negatives(example: ModuleType, tmp_path: Path) -> None:
    settings = settings_of("A sampler and its scheme")
    summary = simulated(make_tiny_population(tmp_path / "population"), tmp_path / "run", *settings)
    # Eleven classes per client, of which those below 8 are no negatives, and at most three others.
    assert 11 < summary["mean_width"] <= 14
    plan = load_experiment("glyphs-tiny", settings).round_plan(0, {COLUMNS: 20})
    assert plan.sampler == Choice("frequent_negatives", {"num_negatives": 3, "num_frequent": 8})
    assert isinstance(SAMPLERS["frequent_negatives"](3, 8), example.FrequentNegatives)
    tiny = TinyFederation()
    before = tiny.weights.copy()
    run_round(tiny.state, plan, [1], tiny.link(), tiny.aggregator())
    moved = set(np.flatnonzero((tiny.weights != before).any(1)).tolist())
    positives = set(tiny.clients[1].labels.tolist())
    assert positives < moved
    assert len(moved - positives) == 3
    assert max(moved - positives) < 8


@of_section("A sampler and its scheme")
def test_with_every_class_frequent_and_drawn_it_is_full_softmax(example: ModuleType) -> None:
    assert example.SAMPLERS is SAMPLERS
    states = []
    for choice in (
        Choice("frequent_negatives", {"num_negatives": 20, "num_frequent": 20}),
        Choice("all_rows"),
    ):
        tiny = TinyFederation()
        plan = RoundPlan(0, {COLUMNS: 20}, choice, Choice("uniform"))
        run_round(tiny.state, plan, [0, 2], tiny.link(), tiny.aggregator())
        states.append(state_bytes(tiny))
    assert states[0] == states[1]


@of_section("An objective")
def test_the_objective_of_the_page_asks_for_a_margin(example: ModuleType, tmp_path: Path) -> None:
    population = make_tiny_population(tmp_path / "population")
    simulated(population, tmp_path / "run", *settings_of("An objective"))
    rng = torch.Generator().manual_seed(0)
    embeddings, columns = torch.randn(5, 16, generator=rng), torch.randn(9, 16, generator=rng)
    labels, adjust = torch.tensor([0, 3, 3, 8, 5]), torch.zeros(9)
    objective = example.MarginSoftmax(StepSpec("three_convolutions", 16, (1, 8, 8)))
    losses = objective.losses(embeddings, {COLUMNS: columns, "adjust": adjust, "labels": labels})
    cosines = F.cosine_similarity(embeddings[:, None], columns[None], dim=2)
    cosines[torch.arange(5), labels] -= 0.1
    torch.testing.assert_close(losses, F.cross_entropy(20 * cosines, labels, reduction="none"))


@of_section("A data set")
def test_the_data_set_of_the_page_is_what_it_says_and_is_trained_on(
    example: ModuleType, tmp_path: Path
) -> None:
    example.write_squares(tmp_path / "squares")
    population = open_population(tmp_path / "squares")
    assert (population.num_classes, len(population.client_ids), len(population.test)) == (16, 4, 16)
    assert population.client_names == ("user 0", "user 1", "user 2", "user 3")
    # A client's label says where the square lies in its image.
    for client_id in population.client_ids:
        client = population.client_examples(client_id)
        rows, columns = (client.features["images"][:, 0].any(axis).argmax(1) // 2 for axis in (2, 1))
        np.testing.assert_array_equal(4 * rows + columns, client.labels)
    assert simulated(population, tmp_path / "run")["num_classes"] == 16


@of_section("An engine")
def test_the_engine_of_the_page_leads_to_the_same_bytes(example: ModuleType) -> None:
    opened: list[int] = []

    def state_after_a_round(of_the_page: bool) -> list[bytes]:
        tiny = TinyFederation()

        def open_client(client_id: int) -> Client:
            opened.append(client_id)
            return tiny.client(client_id)

        name = "last-first" if of_the_page else "in-process"
        with open_engine(name, lambda: open_client, EngineSettings(workers=2)) as link:
            assert isinstance(link, example.LastFirstLink) == of_the_page
            report = run_round(tiny.state, tiny_plan(), [3, 0, 2, 1], link, tiny.aggregator())
        assert report.num_updates == 4
        return state_bytes(tiny)

    assert state_after_a_round(of_the_page=True) == state_after_a_round(of_the_page=False)
    assert opened == [0, 3, 1, 2, 3, 0, 2, 1]


@of_section("An engine")
def test_a_client_that_fails_in_the_engine_of_the_page_costs_itself_alone(example: ModuleType) -> None:
    tiny = TinyFederation()

    class Broken:
        def converse(self, plan: RoundPlan, ask: Ask) -> bytes:  # noqa: ARG002
            raise RuntimeError("the battery is empty")

    def open_client(client_id: int) -> Client | Broken:
        return Broken() if client_id == 2 else tiny.client(client_id)

    link = example.LastFirstLink(open_client, at_once=3)
    report = run_round(tiny.state, tiny_plan(), [0, 1, 2, 3], link, tiny.aggregator())
    assert report.num_updates == 3
    assert report.dropped == {2: "RuntimeError: the battery is empty"}
