"""The worker's side of `server_sim.engines.workers`: a process that trains clients until the server is gone.

The content of a message is wire bytes, a failure as JSON, how much lies in shared memory, or nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import struct
import threading
from contextlib import suppress

import torch

from ondevice.contract import wire
from ondevice.contract.link import ClientFailure, Trace
from ondevice.model.kept_memory import keep_freed_memory
from server_sim.engines import OpenClients
from server_sim.engines.message_pipe import MessagePipe, PipeClosed
from server_sim.engines.shared_bytes import SharedBytes

READY, QUESTION, UPDATE, FAILURE = b"+", b"q", b"u", b"f"
"""What a client's side says."""
PLAN, CLIENT, ANSWER, SLICE, REFUSED = b"p", b"c", b"a", b"s", b"-"
"""What the server says: a plan and its first client, the next client of that plan, an answer, an answer whose end is in the
memory of the round's slices; the last to a bad question."""
CLIENT_ID = struct.Struct("!Q")
SIZE = struct.Struct("!Q")
"""Of what lies in shared memory: an update, or the end of a slice."""


class _Refused(Exception):
    """The server did not take a question: the conversation is over."""


def work(
    pipe: MessagePipe,
    open_clients: OpenClients,
    core: int | None,
    slices: SharedBytes,
    updates: SharedBytes,
) -> None:
    """The worker process: conversations until the pipe closes, on that core if there is one for it."""
    if core is not None:
        with suppress(OSError):  # it may have been taken away from us meanwhile
            os.sched_setaffinity(0, {core})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to act on
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    clients = open_clients()

    def ask(question: bytes) -> bytes:
        pipe.send(QUESTION, question)
        kind, answer = pipe.receive()
        if kind == REFUSED:
            raise _Refused
        if kind == SLICE:
            (size,) = SIZE.unpack_from(answer)
            return b"".join((memoryview(answer)[SIZE.size :], slices.read(size)))
        return answer

    try:
        pipe.send(READY)
        while True:
            kind, message = pipe.receive()
            if kind == PLAN:
                envelope, plan = wire.plan_from_bytes(message)
                client_id = envelope.client_id
            else:
                (client_id,) = CLIENT_ID.unpack(message)
            try:
                update = clients(client_id).converse(plan, ask)
                pipe.send(UPDATE, SIZE.pack(updates.write(update)))
            except PipeClosed:
                return
            except _Refused:
                pass  # the server has dropped this client already, and knows why
            except Exception as error:  # whatever goes wrong on a client must cost that client only
                pipe.send(FAILURE, failure_to_bytes(error))
    except PipeClosed:
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
