"""Worker processes that die at the wrong moment, hang or send nonsense: each costs its client, never the round."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from helpers.federations.tiny_federation import TinyFederation, first_question, state_bytes, tiny_plan

from ondevice.client.client import Client
from server_sim.engines.in_process import InProcessLink
from server_sim.engines.workers import WorkerLink
from server_sim.one_round import run_round

PLAN = tiny_plan()
BAD_CLIENT = 1
PATIENCE = 600.0
TESTS = Path(__file__).parents[2]
TIMEOUT = 5.0

Fault = Literal[
    "dies while sending",
    "stops while sending",
    "bad request, then dies",
    "hangs in training",
    "hangs in its request",
    "a message of no kind",
    "an update without a request",
    "two requests",
    "a failure that is not one",
    "raw bytes",
    "a pickle",
    "gone while idle",
    "a bug of ours",
]


class FaultyClients:
    """The tiny federation's clients in a worker process, one of which misbehaves: the real process, the real pipe."""

    def __init__(self, fault: Fault, marker: Path) -> None:
        self._fault, self._marker = fault, marker

    def __call__(self) -> Callable[[int], Client]:
        federation = TinyFederation()

        def open_client(client_id: int) -> Client:
            if client_id == BAD_CLIENT:
                self._marker.write_text(str(os.getpid()))
                misbehave(self._fault, self._marker)
            return federation.client(client_id)

        return open_client


class ExecutedOnArrival:
    """Unpickled by the server, it would leave a trace."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._marker}.executed",)


def misbehave(fault: Fault, marker: Path) -> None:
    if fault == "a bug of ours":
        _bug_of_ours()
    pipe = _pipe_of_this_worker()
    if fault in ("dies while sending", "stops while sending"):
        os.write(pipe, (1 << 20).to_bytes(4, "big") + b"u" + bytes(1000))  # of a megabyte
        os.kill(os.getpid(), signal.SIGKILL if fault == "dies while sending" else signal.SIGSTOP)
    elif fault == "bad request, then dies":
        _send(pipe, b"qnonsense")
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hangs in training":
        federation = TinyFederation()
        _send(pipe, b"q" + first_question(federation.client(BAD_CLIENT), PLAN))
        time.sleep(PATIENCE)
    elif fault == "hangs in its request":
        time.sleep(PATIENCE)
    elif fault == "a message of no kind":
        _send(pipe, b"what is this")
    elif fault == "an update without a request":
        _send(pipe, b"u" + bytes(100))
    elif fault == "two requests":
        request = b"q" + first_question(TinyFederation().client(BAD_CLIENT), PLAN)
        _send(pipe, request)
        os.read(pipe, 1)  # the slice begins to come
        threading.Thread(target=_take_everything, args=(pipe,), daemon=True).start()
        _send(pipe, request)
    elif fault == "a failure that is not one":
        _send(pipe, b"f" + b"[" * 100_000)
    elif fault == "raw bytes":
        os.write(pipe, b"\xff" * 64)
    elif fault == "a pickle":
        _send(pipe, pickle.dumps(ExecutedOnArrival(marker)))
    elif fault == "gone while idle":
        threading.Timer(1, lambda: _hang_up(pipe)).start()
        return
    time.sleep(PATIENCE)


def _take_everything(pipe: int) -> None:
    while os.read(pipe, 1 << 16):
        pass


def _hang_up(pipe: int) -> None:
    """The process is there, its pipe is not: what the server finds between looking and sending."""
    socket.socket(fileno=os.dup(pipe)).shutdown(socket.SHUT_RDWR)
    os.kill(os.getpid(), signal.SIGSTOP)


def _bug_of_ours() -> None:
    raise KeyError("a bug")


def _send(pipe: int, message: bytes) -> None:
    os.write(pipe, len(message).to_bytes(4, "big") + message)


def _pipe_of_this_worker() -> int:
    """The one socket of a worker process: the pipe to the server."""
    (pipe,) = (
        number
        for number in map(int, os.listdir("/proc/self/fd"))
        if number > 2 and Path(f"/proc/self/fd/{number}").is_socket()
    )
    return pipe


REASONS: dict[Fault, str] = {
    "dies while sending": "its worker process died with exit code -9",
    "stops while sending": "sent no update within 5 seconds (server.client_timeout)",
    "bad request, then dies": "bad message: not a message",
    "hangs in training": "sent no update within 5 seconds (server.client_timeout)",
    "hangs in its request": "sent no update within 5 seconds (server.client_timeout)",
    "a message of no kind": "its worker process sent something that is not a message",
    "an update without a request": "its worker process sent something that is not a message",
    "two requests": "sent no update within 5 seconds (server.client_timeout)",
    "a failure that is not one": "its worker process sent something that is not a message",
    "raw bytes": "its worker process died",
    "a pickle": "its worker process sent something that is not a message",
    "a bug of ours": "KeyError: 'a bug'",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", REASONS)
def test_a_worker_that_misbehaves_costs_its_client_and_is_replaced(
    fault: Fault, tmp_path: Path, tiny: TinyFederation
) -> None:
    marker = tmp_path / "pid"
    with WorkerLink(FaultyClients(fault, marker), num_workers=1, client_timeout=TIMEOUT) as link:
        report = run_round(tiny.state, PLAN, [0, 2, BAD_CLIENT], link, tiny.aggregator())
        assert list(report.dropped) == [BAD_CLIENT]
        assert report.dropped[BAD_CLIENT].startswith(REASONS[fault])
        if fault != "a bug of ours":
            wait_until(lambda: not is_running(int(marker.read_text())))
        undisturbed = TinyFederation()
        run_round(undisturbed.state, PLAN, [0, 2], undisturbed.link(), undisturbed.aggregator())
        assert state_bytes(tiny) == state_bytes(undisturbed)
        plan = tiny_plan(1)
        again = run_round(tiny.state, plan, [3, 0], link, tiny.aggregator())
        # A worker that was dying when it was told its next client may cost that one.
        assert again.num_updates >= (1 if fault == "bad request, then dies" else 2)
    assert not (tmp_path / "pid.executed").exists()


@pytest.mark.slow
def test_a_worker_that_is_gone_when_it_is_told_its_next_client_is_replaced_and_costs_nobody(
    tmp_path: Path, tiny: TinyFederation
) -> None:
    marker = tmp_path / "pid"
    with WorkerLink(FaultyClients("gone while idle", marker), num_workers=1, client_timeout=60) as link:
        first = run_round(tiny.state, PLAN, [BAD_CLIENT], link, tiny.aggregator())
        time.sleep(2)
        assert is_running(int(marker.read_text()))
        plan = tiny_plan(1)
        second = run_round(tiny.state, plan, [0, 2], link, tiny.aggregator())
    assert first.num_updates == 1
    assert second.num_updates == 2


@pytest.mark.slow
def test_a_bug_on_clients_is_told_with_its_traceback_here_and_in_other_processes(
    tmp_path: Path, tiny: TinyFederation
) -> None:
    clients = FaultyClients("a bug of ours", tmp_path / "pid")
    with WorkerLink(clients, num_workers=1, client_timeout=60) as link:
        there = run_round(tiny.state, PLAN, [0, BAD_CLIENT], link, tiny.aggregator())
    here = run_round(
        TinyFederation().state, PLAN, [0, BAD_CLIENT], InProcessLink(clients()), tiny.aggregator()
    )
    for report in (there, here):
        (trace,) = report.traces
        assert "_bug_of_ours" in trace.text
        assert trace.text.endswith("KeyError: 'a bug'")
        assert trace.cause.startswith("KeyError in _bug_of_ours, ")
    assert there.traces[0].cause == here.traces[0].cause


SERVER = """
from pathlib import Path
from test_workers import PLAN, BAD_CLIENT, FaultyClients
from server_sim.engines.workers import WorkerLink

link = WorkerLink(FaultyClients("hangs in its request", Path({marker!r})), 1, 600)
list(link.exchange(PLAN, [BAD_CLIENT], lambda client_id, request: b""))
"""


@pytest.mark.slow
def test_a_worker_that_hangs_does_not_outlive_a_server_that_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(marker=str(marker))],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
    )
    wait_until(marker.exists)
    time.sleep(0.5)
    worker = int(marker.read_text())
    assert is_running(worker)
    server.kill()
    server.wait()
    wait_until(lambda: not is_running(worker))


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not so within {seconds} seconds"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """A zombie has ended: it waits for its parent to ask how."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
