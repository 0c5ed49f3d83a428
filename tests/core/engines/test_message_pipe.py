"""Messages over a pipe that takes less at a time than they have, and deadlines of processes."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from server_sim.engines.deadlines import Deadlines
from server_sim.engines.message_pipe import MessagePipe, PipeClosed

LARGE = 40_000_000
"""Bytes: more than a socket holds."""


@contextmanager
def signals(every: float) -> Iterator[None]:
    """Of the kind that ends a call of the system before it is done."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_pieces_arrive_as_one_message_whatever_interrupts_it() -> None:
    rng = np.random.default_rng(0)
    own, shared = rng.bytes(1_000_003), rng.standard_normal(LARGE // 4, np.float32)
    near, far = MessagePipe.pair()
    received: list[tuple[bytes, bytes]] = []

    def slowly() -> None:
        for _ in range(3):
            time.sleep(0.02)
            received.append(far.receive())

    reader = threading.Thread(target=slowly)
    reader.start()
    # Signals reach the main thread, which sends now and receives below.
    with signals(0.002):
        near.send(b"a", own, shared)
        near.send(b"-")
        near.send(b"u", b"", own)
        reader.join()
        writer = threading.Thread(target=far.send, args=(b"q", shared, own))
        writer.start()
        answer = near.receive()
        writer.join()
    assert received == [(b"a", own + shared.tobytes()), (b"-", b""), (b"u", own)]
    assert answer == (b"q", shared.tobytes() + own)


@pytest.mark.parametrize("end", [b"", b"\0\0", b"\0\0\0\x64u12345"])
def test_an_end_that_is_closed_before_a_message_is_whole_is_told(end: bytes) -> None:
    near, far = socket.socketpair()
    far.sendall(end)
    far.close()
    with pytest.raises(PipeClosed, match=r"closed [0-9]+ bytes before the end"):
        MessagePipe(near).receive()
    with pytest.raises(PipeClosed, match="could not be sent"):
        MessagePipe(near).send(b"q", bytes(LARGE))


@pytest.mark.parametrize("size", [0, (1 << 30) + 2, 0xFFFFFFFF])
def test_a_size_that_no_message_has_is_refused_before_anything_is_allocated(size: int) -> None:
    near, far = socket.socketpair()
    far.sendall(size.to_bytes(4, "big") + b"u")
    with pytest.raises(PipeClosed, match=f"a message of {size} bytes"):
        MessagePipe(near).receive()


def test_a_process_is_killed_at_its_deadline_and_not_if_it_was_set_anew_or_lifted() -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=time.sleep, args=(600,), daemon=True) for _ in range(3)]
    for process in processes:
        process.start()
    late, anew, lifted = processes
    deadlines = Deadlines()
    for process in processes:
        deadlines.set(process, 600)
    # Earlier than what is waited for.
    for process in processes:
        deadlines.set(process, 0.3)
    deadlines.set(anew, 600)
    assert not deadlines.lift(lifted)
    late.join(30)
    assert late.exitcode == -signal.SIGKILL
    assert anew.is_alive()
    assert lifted.is_alive()
    assert deadlines.lift(late)
    assert not deadlines.lift(anew)
    deadlines.close()
    for process in (anew, lifted):
        process.kill()
        process.join()
