"""Whole federations on the emulated ARM64 phone end where simulated ones end: virtual clients, importance weights, hashes of
labels, and words that hash tables find.

An experiment is played twice on one exported step: by the native client on the phone, and by the Python client here.
What clients ask for follows from their draws, and from the buckets of their texts, so it is the same to the byte.
What they send is rounded in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_labels import write_repository_files
from helpers.data.tiny_texts import import_tiny_chats
from helpers.native.arm_programs import CACHE, require_programs

from android_harness.emulator.machine import EMULATOR_PROGRAMS
from fedss.api.exported_step import exported_step
from fedss.device_rounds import DeviceChoice, open_device_link
from ondevice.backends.eager import EagerBackend
from ondevice.contract import safetensors_file
from ondevice.contract.link import Answer, ClientFailure, Link, Pieces
from ondevice.contract.vocabulary import RoundPlan
from server_sim.data.population import Population, open_population
from server_sim.engines import EngineSettings
from server_sim.engines.in_process import open_in_process
from server_sim.experiment import Experiment, load_experiment
from server_sim.preparation import ClientsRecipe, initial_weights, population_path, step_spec
from server_sim.runs.directory import RunDirectory
from server_sim.simulation import Simulation

pytestmark = pytest.mark.slow  # exports steps and boots phones

ROUNDS = 2
TOLERANCE = 1e-4
"""Of the relative L2 distance between what two runs have learnt, as between two clients' updates."""
SMALL = {
    "server.rounds": ROUNDS,
    "server.clients_per_round": 3,
    "server.optimizer": "fedavgm",
    "client.epochs": 1,
    "client.batch_size": 8,
}
VIRTUAL = 32
"""Of the clients of `glyphs-tiny` some hold more, and draw a part of it, and some hold less, and repeat theirs."""


@dataclass
class Ending:
    """What the server heard and where it ended."""

    asked: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    """(round, client) -> its questions."""
    lines: list[dict[str, object]] = field(default_factory=list)
    """A line of metrics per round."""
    state: dict[str, np.ndarray] = field(default_factory=dict)


class HeardLink:
    """A link whose clients' questions are kept."""

    def __init__(self, link: Link, ending: Ending) -> None:
        self._link, self._ending = link, ending

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        def heard(client_id: int, question: bytes) -> bytes | Pieces:
            self._ending.asked.setdefault((plan.round_index, client_id), []).append(question)
            return answer(client_id, question)

        return self._link.exchange(plan, client_ids, heard)


@dataclass(frozen=True)
class Federation:
    """One step and its clients, on the phone and here."""

    population: Population
    recipe: ClientsRecipe
    phone: Link
    here: Link

    def play(self, experiment: Experiment, link: Link, folder: Path) -> Ending:
        ending = Ending()
        recipe = self.recipe
        backend = EagerBackend(recipe.spec, recipe.initial)
        simulation = Simulation(
            experiment, self.population, backend, recipe.initial, HeardLink(link, ending), folder
        )
        simulation.run(resume=False, on_round=ending.lines.append)
        tensors, _ = safetensors_file.read_file(RunDirectory(folder).state_path)
        ending.state = {name: np.asarray(tensor) for name, tensor in tensors.items()}
        return ending


@contextmanager
def opened(experiment: Experiment, folder: Path) -> Iterator[Federation]:
    """The step is exported once, and a phone is booted that keeps it and the clients' data."""
    require_programs(*EMULATOR_PROGRAMS)
    data = population_path(experiment.data, CACHE)
    population = open_population(data)
    spec = step_spec(experiment, population)
    initial = initial_weights(experiment, spec)
    exported = exported_step("executorch", experiment, population, (spec, initial), folder, print)
    recipe = ClientsRecipe(data, spec, initial, experiment.seed, exported)
    simulated = partial(open_in_process, recipe, EngineSettings())
    with ExitStack() as stack:
        here = stack.enter_context(simulated())
        choice = DeviceChoice(("emulator",))
        phone = stack.enter_context(open_device_link(choice, recipe, CACHE, simulated, print))
        yield Federation(population, recipe, phone, here)


def distance(found: Ending, expected: Ending) -> float:
    """The largest relative L2 distance between tensors; momentum, of the same length as all updates, is among them."""
    assert found.state.keys() == expected.state.keys()
    distances = [0.0]
    for name, other in expected.state.items():
        if other.dtype.kind == "f":
            distances.append(float(np.linalg.norm(found.state[name] - other) / np.linalg.norm(other)))
        else:
            assert found.state[name].tolist() == other.tolist(), name
    return max(distances)


def assert_same_federation(found: Ending, expected: Ending) -> None:
    assert found.asked == expected.asked
    for line, other in zip(found.lines, expected.lines, strict=True):
        assert (line["dropped"], line["abandoned"]) == ({}, [])
        for exact in ("num_updates", "most_examples", "mean_width", "bytes_up", "bytes_down"):
            assert line[exact] == other[exact], exact
        assert line["mean_loss"] == pytest.approx(other["mean_loss"], rel=1e-5)
    assert distance(found, expected) < TOLERANCE


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with opened(load_experiment("glyphs-tiny").overridden(SMALL), tmp_path_factory.mktemp("glyphs")) as found:
        yield found


@pytest.mark.parametrize(
    ("virtual_clients", "importance"), [(VIRTUAL, "off"), (0, "population"), (VIRTUAL, "population")]
)
def test_virtual_clients_and_importance_weights_are_the_simulated_ones(
    virtual_clients: int, importance: str, glyphs: Federation, tmp_path: Path
) -> None:
    plain = load_experiment("glyphs-tiny").overridden(SMALL)
    settings = {"scheme.virtual_clients": virtual_clients, "scheme.importance": importance}
    experiment = plain.overridden(settings)
    on_phone = glyphs.play(experiment, glyphs.phone, tmp_path / "phone")
    simulated = glyphs.play(experiment, glyphs.here, tmp_path / "simulated")
    assert_same_federation(on_phone, simulated)
    held = [glyphs.population.num_examples(client_id) for _, client_id in on_phone.asked]
    assert len(held) == ROUNDS * plain.server.clients_per_round
    if virtual_clients:
        assert min(held) < VIRTUAL < max(held)
        assert [line["most_examples"] for line in on_phone.lines] == [VIRTUAL] * ROUNDS
    # The same clients without what is tested here end far from there.
    selection = {"server.selection": experiment.scheme.selection}
    without = glyphs.play(plain.overridden(selection), glyphs.here, tmp_path / "without")
    assert without.asked.keys() == on_phone.asked.keys()
    assert distance(without, simulated) > 100 * TOLERANCE


def played_twice(experiment: Experiment, folder: Path) -> tuple[Ending, Ending]:
    """On a phone of its own, and here."""
    with opened(experiment, folder) as federation:
        on_phone = federation.play(experiment, federation.phone, folder / "phone")
        return on_phone, federation.play(experiment, federation.here, folder / "simulated")


def test_hashed_classes_are_the_simulated_ones(tmp_path: Path) -> None:
    files = write_repository_files(tmp_path / "files", num_features=5000, num_classes=3993)
    small = {
        **SMALL,
        "data.source": str(files),
        "scheme.num_tables": 2,
        "scheme.num_buckets": 20,
        "model.architecture_arguments.hidden": 16,
        "server.rounds": 1,
    }
    on_phone, simulated = played_twice(load_experiment("eurlex-4k-fedmlh").overridden(small), tmp_path)
    assert_same_federation(on_phone, simulated)


def test_words_found_in_hash_tables_are_the_simulated_ones(tmp_path: Path) -> None:
    small = {
        **SMALL,
        "data.population": str(import_tiny_chats(tmp_path)),
        "scheme.num_negatives": 8,
        "scheme.num_bits": 3,
        "model.architecture_arguments.hidden": 16,
        "model.embedding_dim": 16,
    }
    on_phone, simulated = played_twice(load_experiment("chitchat-simhash").overridden(small), tmp_path)
    assert_same_federation(on_phone, simulated)
    # φ and the rows that its texts read, the words of its buckets, the rows of what it trains.
    assert {len(questions) for questions in on_phone.asked.values()} == {3}
