"""Clients that fail or lie, rounds with too few left, workers that die: the round goes on, or nothing has changed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, state_bytes, tiny_plan

from ondevice.client.client import Client
from ondevice.contract.link import Ask
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import WireError
from server_sim.engines.in_process import InProcessLink
from server_sim.engines.workers import WorkerLink
from server_sim.one_round import RoundAbandoned, RoundRules, run_round

PLAN = tiny_plan()


class Misbehaving:
    """A client whose request or update goes wrong."""

    def __init__(
        self,
        honest: Client,
        request: Callable[[bytes], bytes] = lambda message: message,
        update: Callable[[bytes], bytes] = lambda message: message,
    ) -> None:
        self._honest, self._request, self._update = honest, request, update

    def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
        return self._update(self._honest.converse(plan, lambda question: ask(self._request(question))))


def breaks(message: bytes) -> bytes:
    raise OSError(f"no space left after {len(message)} bytes")


FAULTS: dict[str, tuple[dict[str, Callable[[bytes], bytes]], str]] = {
    "crash": ({"update": breaks}, "OSError: no space left"),
    "cut update": ({"update": lambda message: message[:-10]}, "not a message"),
    "noise": ({"update": lambda message: os.urandom(len(message))}, "not a message"),
    "bad request": ({"request": lambda message: message[: len(message) // 2]}, "bad message"),
    "request as update": ({"update": lambda _: b""}, "not a message"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_that_fails_is_dropped_and_the_rest_count_as_if_it_had_not_been_there(fault: str) -> None:
    behaviour, reason = FAULTS[fault]
    with_fault, without = TinyFederation(), TinyFederation()

    def open_client(client_id: int) -> Client | Misbehaving:
        honest = with_fault.client(client_id)
        return Misbehaving(honest, **behaviour) if client_id == 1 else honest

    report = run_round(with_fault.state, PLAN, [0, 1, 2], InProcessLink(open_client), with_fault.aggregator())
    run_round(without.state, PLAN, [0, 2], without.link(), without.aggregator())
    assert list(report.dropped) == [1]
    assert reason in report.dropped[1]
    assert report.num_updates == 2
    assert state_bytes(with_fault) == state_bytes(without)


def test_a_round_with_too_few_clients_left_is_abandoned_and_changes_nothing(tiny: TinyFederation) -> None:
    before = state_bytes(tiny)
    aggregator = tiny.aggregator()

    def open_client(client_id: int) -> Client | Misbehaving:
        honest = tiny.client(client_id)
        return honest if client_id == 0 else Misbehaving(honest, update=breaks)

    with pytest.raises(
        RoundAbandoned, match=r"round 0: 1 of 3 clients are left, at least 2 are needed .*no space left"
    ):
        run_round(
            tiny.state, PLAN, [0, 1, 2], InProcessLink(open_client), aggregator, RoundRules(min_clients=2)
        )
    assert state_bytes(tiny) == before
    assert tiny.state.round_index == 0

    # The same round, tried again with the same aggregator, is the round of an undisturbed federation.
    undisturbed = TinyFederation()
    run_round(tiny.state, PLAN, [0, 2], tiny.link(), aggregator, RoundRules(min_clients=2))
    run_round(undisturbed.state, PLAN, [0, 2], undisturbed.link(), undisturbed.aggregator())
    assert state_bytes(tiny) == state_bytes(undisturbed)


class TinyClients:
    """Makes the tiny federation's clients in a worker process; client 3 kills its own."""

    def __init__(self, marker: Path | None = None) -> None:
        self._marker = marker

    def __call__(self) -> Callable[[int], Client]:
        federation = TinyFederation()

        def open_client(client_id: int) -> Client:
            if client_id == 3 and self._marker is not None:
                self._marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return federation.client(client_id)

        return open_client


@pytest.mark.slow
def test_worker_processes_give_the_same_bytes_as_one_process() -> None:
    serial, parallel = TinyFederation(), TinyFederation()
    with WorkerLink(TinyClients(), num_workers=2, client_timeout=60) as link:
        for round_index in range(2):
            plan = tiny_plan(round_index)
            one = run_round(serial.state, plan, [3, 0, 1, 2], serial.link(), serial.aggregator())
            other = run_round(parallel.state, plan, [3, 0, 1, 2], link, parallel.aggregator())
            assert one == other
    assert state_bytes(serial) == state_bytes(parallel)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_stay_on_a_core_each_if_there_are_as_many_as_cores(
    num_workers: int, tiny: TinyFederation
) -> None:
    cores = os.sched_getaffinity(0)
    two = set(sorted(cores)[:2])
    if len(two) < 2:
        pytest.skip("there is one core")
    os.sched_setaffinity(0, two)
    try:
        with WorkerLink(TinyClients(), num_workers, client_timeout=60) as link:
            run_round(tiny.state, PLAN, [0, 1, 2, 3], link, tiny.aggregator())
            places = [os.sched_getaffinity(worker.pid or 0) for worker in multiprocessing.active_children()]
    finally:
        os.sched_setaffinity(0, cores)
    assert sorted(map(sorted, places)) == (
        [sorted(two)] if num_workers == 1 else [[core] for core in sorted(two)]
    )


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_client_and_is_replaced(
    tmp_path: Path, tiny: TinyFederation
) -> None:
    marker = tmp_path / "killed"
    with WorkerLink(TinyClients(marker), num_workers=1, client_timeout=60) as link:
        report = run_round(tiny.state, PLAN, [0, 3, 2], link, tiny.aggregator())
    assert marker.exists()
    assert report.dropped == {3: "its worker process died with exit code -9"}
    assert report.num_updates == 2


@pytest.mark.slow
def test_a_bad_request_does_not_stop_a_worker(tiny: TinyFederation) -> None:
    """The server refuses the request for an impossible class count; the worker goes on with the next client."""
    with WorkerLink(TinyClients(), num_workers=1, client_timeout=60) as link:
        refused = list(link.exchange(PLAN, [0], _refuse))
        served = run_round(tiny.state, PLAN, [1], link, tiny.aggregator())
    assert "bad message: no" in str(refused[0][1])
    assert served.num_updates == 1
    assert np.isfinite(served.mean_loss)


def _refuse(client_id: int, request: bytes) -> bytes:
    raise WireError(f"no, client {client_id} with {len(request)} bytes")
