"""A saved state is whole, finite and of this experiment, or it is refused; only two named methods change a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.data.tiny_population import make_tiny_population
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan

from ondevice.backends import Backend
from ondevice.contract import safetensors_file
from ondevice.contract.safetensors_file import Array
from ondevice.contract.step_signature import Arrays
from ondevice.contract.vocabulary import COLUMNS
from server_sim.experiment import load_experiment
from server_sim.one_round import run_round
from server_sim.schemes import RoundContext
from server_sim.schemes.centralized import train_centrally
from server_sim.server.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer
from server_sim.server.state import FORMAT, ServerState, StateError, _digest


def after_two_rounds(optimizer: ServerOptimizer) -> TinyFederation:
    tiny = TinyFederation(optimizer=optimizer)
    for round_index in range(2):
        run_round(tiny.state, tiny_plan(round_index), [0, 1], tiny.link(), tiny.aggregator())
    return tiny


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    after_two_rounds(FedAvgM()).state.save(path)
    return path


@pytest.mark.parametrize("optimizer", [FedAvg(), FedAvgM(), FedAdam()])
def test_what_was_saved_comes_back_bit_by_bit(optimizer: ServerOptimizer, tmp_path: Path) -> None:
    tiny, other = after_two_rounds(optimizer), TinyFederation(seed=5, optimizer=optimizer)
    tiny.state.save(tmp_path / "state")
    other.state = ServerState.load(tmp_path / "state", other.state)
    assert other.state.round_index == 2
    assert state_bytes(other) == state_bytes(tiny)


def rewrite(path: Path, change: Callable[[dict[str, Array]], object]) -> None:
    """A state that somebody made: its digest is right."""
    tensors, _ = safetensors_file.read_file(path)
    arrays = {name: np.array(tensor) for name, tensor in tensors.items() if isinstance(tensor, np.ndarray)}
    change(arrays)
    safetensors_file.write_file(path, arrays, {"format": FORMAT, "sha256": _digest(arrays)})


CHANGES: dict[str, tuple[Callable[[dict[str, Array]], object], str]] = {
    "NaN": (
        lambda arrays: arrays["table.columns.weights"].fill(np.nan),
        r"table\.columns\.weights holds NaN or infinity",
    ),
    "infinite moment": (lambda arrays: arrays["table.columns.moment0"].fill(np.inf), "moment0 holds NaN"),
    "negative round": (lambda arrays: arrays["round_index"].fill(-1), "is at round -1"),
    "row ahead of its time": (lambda arrays: arrays["table.columns.current_at"].fill(3), "is at round 2"),
    "other shape": (
        lambda arrays: arrays.update({"table.columns.weights": arrays["table.columns.weights"][1:]}),
        r"table\.columns\.weights is float32\[19, 16\]; expected float32\[20, 16\]",
    ),
    "round without a number": (
        lambda arrays: arrays.update(round_index=np.zeros(0, np.int64)),
        r"round_index is int64\[0\]",
    ),
    "a tensor more": (lambda arrays: arrays.update(extra=arrays["round_index"]), r"unknown: \['extra'\]"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_cannot_be_of_this_experiment_is_refused(change: str, saved: Path) -> None:
    how, message = CHANGES[change]
    rewrite(saved, how)
    tiny = TinyFederation(optimizer=FedAvgM())
    before = state_bytes(tiny)
    with pytest.raises(StateError, match=message):
        ServerState.load(saved, tiny.state)
    assert state_bytes(tiny) == before
    assert tiny.state.round_index == 0


def test_one_changed_bit_of_the_weights_is_noticed(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-100] ^= 1
    saved.write_bytes(content)
    with pytest.raises(StateError, match="its content is not what was saved"):
        ServerState.load(saved, TinyFederation(optimizer=FedAvgM()).state)


@pytest.mark.parametrize("optimizer", [FedAvg(), FedAdam()])
def test_the_state_of_another_optimizer_is_refused(saved: Path, optimizer: ServerOptimizer) -> None:
    with pytest.raises(StateError, match="of another optimizer or model"):
        ServerState.load(saved, TinyFederation(optimizer=optimizer).state)


@pytest.mark.parametrize("spoilt", ["weights", "moment", "dense"])
def test_a_spoilt_state_is_not_saved_over_a_good_one(saved: Path, spoilt: str) -> None:
    good = saved.read_bytes()
    state = after_two_rounds(FedAvgM()).state
    array = {
        "weights": state.tables[COLUMNS].store.arrays()["weights"],
        "moment": state.tables[COLUMNS].store.arrays()["moment0"],
        "dense": next(iter(state.dense.values())),
    }[spoilt]
    array.flat[0] = np.inf
    with pytest.raises(StateError, match="is left as it was"):
        state.save(saved)
    assert saved.read_bytes() == good


class Failing:
    """Eager torch, of which the third step fails."""

    def __init__(self, tiny: TinyFederation) -> None:
        self._backend, self._left = tiny.backend, 2
        self.signature, self.micro_batch = tiny.backend.signature, None
        self.embed = tiny.backend.embed

    def step(self, arrays: Arrays) -> Arrays:
        if not self._left:
            raise OSError("out of memory")
        self._left -= 1
        return self._backend.step(arrays)


def test_centralized_training_changes_the_state_once_when_it_is_done(tmp_path: Path) -> None:
    """A step that fails half-way leaves the state alone; the arrays that are trained are not the state's."""
    tiny = TinyFederation()
    before = state_bytes(tiny)
    context = centralized_round(tiny, Failing(tiny), tmp_path)
    with pytest.raises(OSError, match="out of memory"):
        train_centrally(context)
    assert state_bytes(tiny) == before
    assert tiny.state.round_index == 0

    loss = train_centrally(replace(context, backend=tiny.backend))
    assert np.isfinite(loss)
    assert not set(state_bytes(tiny)) & set(before)
    assert tiny.state.round_index == 1


@pytest.mark.parametrize("epochs", [1, 5])
def test_centralized_training_takes_the_steps_of_the_clients_together(tmp_path: Path, epochs: int) -> None:
    """Batches of 4 of 11 examples, as often as a client passes over its own."""
    tiny = TinyFederation()
    context = centralized_round(tiny, tiny.backend, tmp_path)
    counted = Counting(tiny)
    changes = {"client.epochs": epochs}
    train_centrally(replace(context, backend=counted, experiment=context.experiment.overridden(changes)))
    assert counted.num_steps == -(-11 * epochs // 4)


class Counting:
    """Eager torch, whose steps are counted."""

    def __init__(self, tiny: TinyFederation) -> None:
        self._backend, self.num_steps = tiny.backend, 0
        self.signature, self.micro_batch = tiny.backend.signature, None
        self.embed = tiny.backend.embed

    def step(self, arrays: Arrays) -> Arrays:
        self.num_steps += 1
        return self._backend.step(arrays)


def centralized_round(tiny: TinyFederation, backend: Backend, folder: Path) -> RoundContext:
    """Batches of 4 of the 11 examples that one client of a round has on average: three steps."""
    settings = ["scheme.name=centralized", "client.batch_size=4", "client.learning_rate=0.1"]
    experiment = load_experiment("glyphs-tiny", [*settings, "server.clients_per_round=1"])
    population = make_tiny_population(folder / "population")
    return RoundContext(experiment, population, backend, tiny.state, federated_round=dict)


def test_centralized_training_is_refused_a_state_with_moments() -> None:
    tiny = TinyFederation(optimizer=FedAvgM())
    before = state_bytes(tiny)
    with pytest.raises(ValueError, match="keeps moments of FedAvgM"):
        tiny.state.adopt({**tiny.state.dense, COLUMNS: tiny.columns()})
    assert state_bytes(tiny) == before
