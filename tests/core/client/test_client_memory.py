"""What clients remember between rounds: theirs alone, the same in every process, and never ahead of the saved state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, tiny_plan

import fedss
from fedss.api.errors import UsageError
from fedss.api.places import place_for
from ondevice.client.client import Client
from ondevice.client.memory import FolderMemory
from ondevice.contract.choice import Choice
from ondevice.contract.link import Answer, ClientFailure
from ondevice.contract.vocabulary import RoundPlan
from server_sim.engines import ENGINES, EngineSettings, OpenClients
from server_sim.engines.client_memories import ClientMemories
from server_sim.engines.in_process import InProcessLink
from server_sim.experiment import ConfigurationError, load_experiment
from server_sim.one_round import run_round

CACHE = Path(__file__).parents[3] / "cache"
TOP_K = {"name": "top_k", "fraction": 0.05}
OVERRIDES = {"client.transforms": [TOP_K], "server.rounds": 8, "server.clients_per_round": 6}
"""Six of twelve clients: each takes part about every other round."""


def kept(number: float) -> dict[str, np.ndarray]:
    return {"w": np.full((2, 2), number, np.float32)}


def recalled(memory: FolderMemory, round_index: int) -> float | None:
    arrays = memory.recall(round_index)
    return float(arrays["w"][0, 0]) if arrays else None


def simulated(path: Path, workers: int = 1) -> bytes:
    run = fedss.simulate("glyphs-tiny", overrides=OVERRIDES, out=path, cache=CACHE, workers=workers)
    assert run.summary["dropped_clients"] == 0
    return (path / "state.safetensors").read_bytes()


def memory_of(path: Path) -> dict[str, bytes]:
    files = (path / "memory").rglob("*.safetensors")
    return {file.relative_to(path / "memory").as_posix(): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    simulated(path)
    return path


def test_a_client_recalls_the_last_round_before_this_one(tmp_path: Path) -> None:
    memory = FolderMemory(tmp_path / "7")
    assert recalled(memory, 100) is None
    for round_index in (2, 10, 5):
        memory.keep(round_index, kept(round_index))
    assert [recalled(memory, at) for at in (2, 3, 5, 6, 10, 11)] == [None, 2, 2, 5, 5, 10]
    memory.keep(5, kept(5.5))  # the same round, held again
    assert recalled(memory, 6) == 5.5
    memory.forget(10)
    assert recalled(memory, 99) == 5.5
    assert FolderMemory(tmp_path / "8").rounds() == []


def test_a_damaged_memory_is_told_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "3.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"3\.safetensors is no memory of a client"):
        FolderMemory(tmp_path).recall(4)


def test_memories_follow_the_saved_state(tmp_path: Path) -> None:
    memories = ClientMemories(tmp_path)
    for client_id, rounds in {1: (0, 2, 3, 6), 2: (1,), 3: (7,)}.items():
        for round_index in rounds:
            memories.of(client_id).keep(round_index, kept(round_index))
    memories.prune(4)  # the state before round 4 is saved
    assert [memories.of(client_id).rounds() for client_id in (1, 2, 3)] == [[3, 6], [1], [7]]
    memories.forget(7, [3])
    memories.cut_back(6)  # the run goes on with round 6
    assert [memories.of(client_id).rounds() for client_id in (1, 2, 3)] == [[3], [1], []]
    memories.cut_back(0)
    assert memories.of(1).rounds() == []


def test_a_client_sends_later_what_it_remembers(tmp_path: Path) -> None:
    """Two rounds of the same client: with its memory the second update is another one."""
    tiny, memories = TinyFederation(), ClientMemories(tmp_path)

    def client(client_id: int) -> Client:
        return Client(client_id, tiny.clients[client_id], 7, lambda: tiny.backend, memories.of(client_id))

    plans = [tiny_plan(at, transforms=(Choice("top_k", {"fraction": 0.05}),)) for at in range(2)]
    for plan in plans:
        report = run_round(tiny.state, plan, [0, 1], InProcessLink(client), tiny.aggregator())
        assert report.num_updates == 2
    forgetful = TinyFederation()
    for plan in plans:
        memories.cut_back(0)
        run_round(forgetful.state, plan, [0, 1], InProcessLink(client), forgetful.aggregator())
    assert any((tiny.state.dense[name] != forgetful.state.dense[name]).any() for name in tiny.state.dense)


@pytest.mark.slow  # torch is imported in two processes
def test_worker_processes_end_in_the_same_state_and_memory(undisturbed: Path, tmp_path: Path) -> None:
    assert simulated(tmp_path / "run", workers=2) == (undisturbed / "state.safetensors").read_bytes()
    assert memory_of(tmp_path / "run") == memory_of(undisturbed)
    assert len(memory_of(undisturbed)) > 6


@pytest.mark.parametrize("save_every", [1, 3])
def test_a_run_that_is_stopped_and_resumed_ends_in_the_same_state_and_memory(
    save_every: int, undisturbed: Path, tmp_path: Path
) -> None:
    """Stopped in the middle of rounds, when some of their clients have written their memory, and killed after others, when
    their memory is ahead of the saved state."""
    overrides = {**OVERRIDES, "server.save_every": save_every}

    def go_on(stop: Callable[[], bool] = lambda: False, last: int | None = None) -> None:
        fedss.simulate(
            "glyphs-tiny",
            overrides=overrides,
            out=tmp_path / "run",
            cache=CACHE,
            resume=True,
            stop=stop,
            on_round=lambda record: _kill(record.round == last),
        )

    for asked, killed_in in ((10, 3), (5, 5), (5, 6)):
        clients = itertools.count(1)
        with pytest.raises(fedss.Interrupted):
            go_on(stop=lambda most=asked, clients=clients: next(clients) == most)  # type: ignore[misc]
        with pytest.raises(_Killed):
            go_on(last=killed_in)
    go_on()
    found = (tmp_path / "run" / "state.safetensors").read_bytes()
    assert found == (undisturbed / "state.safetensors").read_bytes()
    assert memory_of(tmp_path / "run") == memory_of(undisturbed)


class _Killed(BaseException):
    """What no code of ours handles."""


def _kill(now: bool) -> None:
    if now:
        raise _Killed


class LosingLink:
    """Every second round loses the update of one client on the way, after the client has sent it."""

    lost: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, link: InProcessLink) -> None:
        self._link = link

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        for client_id, outcome in self._link.exchange(plan, client_ids, answer):
            if client_id == client_ids[0] and plan.round_index % 2:
                self.lost.append((client_id, plan.round_index))
                yield client_id, ClientFailure("lost on the way")
            else:
                yield client_id, outcome


@contextmanager
def open_losing(open_clients: OpenClients, settings: EngineSettings) -> Iterator[LosingLink]:  # noqa: ARG001
    yield LosingLink(InProcessLink(open_clients()))


def test_a_client_whose_update_was_lost_does_not_remember_it_as_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "in-process", f"{__name__}:open_losing")
    overrides = {**OVERRIDES, "server.save_every": 8}
    run = fedss.simulate("glyphs-tiny", overrides=overrides, out=tmp_path / "run", cache=CACHE)
    assert run.summary["dropped_clients"] == len(LosingLink.lost) == 4
    memories = ClientMemories(tmp_path / "run" / "memory")
    for client_id, round_index in LosingLink.lost:
        assert round_index not in memories.of(client_id).rounds()


def test_where_clients_have_no_memory_the_transform_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = load_experiment("glyphs-tiny").overridden({"client.transforms": [TOP_K]})
    with pytest.raises(
        UsageError, match=r"holds top_k, which remembers .*; clients on devices have no memory"
    ):
        place_for(experiment, 1, None, ["host"])
    monkeypatch.setitem(ENGINES, "elsewhere", "nowhere:nothing")
    with pytest.raises(
        UsageError, match=r"clients of the engine elsewhere have no memory .* in-process or workers"
    ):
        place_for(experiment, 1, None, (), "elsewhere")
    assert place_for(experiment, 2, None, ()).engine == "workers"
    tiny = TinyFederation()
    plan = tiny_plan(transforms=(Choice("top_k", {"fraction": 0.1}),))
    with pytest.raises(
        ValueError, match=r"remembers what it did not send \(top_k\), and this client has no memory"
    ):
        tiny.client(0).converse(plan, lambda _: pytest.fail("it asked before it looked for its memory"))


def test_a_norm_that_memory_would_exceed_is_not_promised() -> None:
    with pytest.raises(
        ConfigurationError, match=r"holds clip and top_k: .* beyond clip's norm; expected one"
    ):
        load_experiment("glyphs-tiny").overridden(
            {"client.transforms": [{"name": "clip", "norm": 1.0}, TOP_K]}
        )
