"""The worker's side of `server_sim.engines.workers`: a process that trains clients until the server is gone.

A message to the server is one byte that says what it is, and the content: wire bytes, or a failure as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

import torch

from ondevice.contract import wire
from ondevice.contract.link import ClientFailure, Trace
from server_sim.engines import OpenClients

READY, QUESTION, UPDATE, FAILURE = b"+", b"q", b"u", b"f"
REFUSED = b""
"""The server's answer to a bad question: no other answer is empty."""


class _Refused(Exception):
    """The server did not take a question: the conversation is over."""


def work(pipe: Connection[Any, Any], open_clients: OpenClients) -> None:
    """The worker process: conversations until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to act on
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    torch.set_num_threads(1)
    clients = open_clients()

    def ask(question: bytes) -> bytes:
        pipe.send_bytes(QUESTION + question)
        answer = pipe.recv_bytes()
        if answer == REFUSED:
            raise _Refused
        return answer

    try:
        pipe.send_bytes(READY)
        while True:
            envelope, plan = wire.plan_from_bytes(pipe.recv_bytes())
            try:
                pipe.send_bytes(UPDATE + clients(envelope.client_id).converse(plan, ask))
            except EOFError:
                return
            except _Refused:
                pass  # the server has dropped this client already, and knows why
            except Exception as error:  # whatever goes wrong on a client must cost that client only
                pipe.send_bytes(FAILURE + failure_to_bytes(error))
    except (EOFError, ConnectionError):
        return


def failure_to_bytes(error: Exception) -> bytes:
    trace = Trace.of(error)
    reason = str(ClientFailure(f"{type(error).__name__}: {error}"))
    return json.dumps({"reason": reason, "cause": trace.cause, "text": trace.text}).encode()


def failure_from_bytes(content: bytes) -> ClientFailure:
    """ValueError for anything else than `failure_to_bytes` writes."""
    failure = json.loads(content)
    if not isinstance(failure, dict) or not all(
        isinstance(failure.get(name), str) for name in ("reason", "cause", "text")
    ):
        raise ValueError("a failure that does not say what and where")
    return ClientFailure(failure["reason"], Trace(failure["cause"], failure["text"]))


def _end_with_the_server() -> None:
    """A server that is killed closes nothing, and a client may train for hours or hang.

    The parent is watched instead of asking the kernel for PR_SET_PDEATHSIG, which fires when the *thread* ends that made
    the worker: a worker that was replaced in the thread of a mixed round would die with that round.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
