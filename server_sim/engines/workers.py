"""Clients of a round in parallel processes: the same conversation as `server_sim.engines.in_process`, over pipes.

A worker holds one conversation at a time: told a plan, it asks as often as it needs, and sends the update.

Whatever becomes of a worker costs its client and nothing else: one that dies, at whatever moment, that sends what is no
message, or that takes longer than a client may, is killed and replaced.  The server reads bytes from it, never pickles.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from types import TracebackType

from ondevice.contract import wire
from ondevice.contract.conversations.ordered_window import OrderedWindow, Turn
from ondevice.contract.link import Answer, ClientFailure, Pieces
from ondevice.contract.safetensors_file import Array
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import MAX_MESSAGE_BYTES, Envelope, WireError
from server_sim.engines import EngineSettings, OpenClients
from server_sim.engines.deadlines import Deadlines
from server_sim.engines.message_pipe import MessagePipe, PipeClosed
from server_sim.engines.shared_bytes import SharedBytes
from server_sim.engines.worker_process import (
    ANSWER,
    CLIENT,
    CLIENT_ID,
    FAILURE,
    PLAN,
    QUESTION,
    READY,
    REFUSED,
    SIZE,
    SLICE,
    UPDATE,
    failure_from_bytes,
    work,
)

START_SECONDS = 600.0
"""That a worker process may take until it is ready for its first client: it imports torch, on a machine that may be busy."""
_LAST_MOMENT = 1.0
"""Seconds between a worker's pipe closing and its end: its exit code is the reason that is told."""


def open_workers(open_clients: OpenClients, settings: EngineSettings) -> WorkerLink:
    """As many processes as conversations are wanted at once."""
    return WorkerLink(open_clients, settings.workers, settings.client_timeout)


class WorkerLink:
    """A fixed number of worker processes, each training one client at a time, for at most `client_timeout` seconds."""

    def __init__(self, open_clients: OpenClients, num_workers: int, client_timeout: float) -> None:
        self._open_clients = open_clients
        self._client_timeout = client_timeout
        self._deadlines = Deadlines()
        self._cores = _cores_of(num_workers)
        self._slices = _RoundSlices()
        self._workers = [self._new_worker(index) for index in range(num_workers)]

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        window: OrderedWindow[bytes | ClientFailure] = OrderedWindow(client_ids, 2 * len(self._workers))
        self._slices.begin_round()
        try:
            while not window.is_done:
                self._start_what_can(window, plan)
                for worker in self._that_speak():
                    turn, outcome = worker.turn, worker.hear(answer)
                    if outcome is not None:
                        assert turn is not None
                        window.finish(turn, outcome)
                # Before the updates are handed out: no worker waits while the server adds them.
                self._start_what_can(window, plan)
                yield from window.ready()
        finally:
            # Left early, as by Ctrl-C: what the others were asked for is not wanted, and must not answer the next round.
            for worker in self._workers:
                if worker.turn is not None:
                    worker.close()

    def _that_speak(self) -> list[_Worker]:
        """Waits until a worker with a client has a message, or is gone."""
        busy = {worker.pipe.fileno(): worker for worker in self._workers if worker.turn is not None}
        # Not multiprocessing's wait(): it makes a selector anew for every message.
        poll = select.poll()
        for pipe in busy:
            poll.register(pipe, select.POLLIN)
        return [busy[pipe] for pipe, _ in poll.poll()] if busy else []

    def _start_what_can(self, window: OrderedWindow[bytes | ClientFailure], plan: RoundPlan) -> None:
        for index, worker in enumerate(self._workers):
            turn = window.start() if worker.turn is None else None
            if turn is not None and not self._start(index, turn, plan):
                window.finish(turn, ClientFailure("no worker process can be started for it"))

    def _start(self, index: int, turn: Turn, plan: RoundPlan) -> bool:
        """Give a free worker its next client.  One that died while idle is replaced, and has cost nothing."""
        if self._workers[index].start(turn, plan):
            return True
        self._workers[index].close()
        self._workers[index] = self._new_worker(index)
        return self._workers[index].start(turn, plan)

    def _new_worker(self, index: int) -> _Worker:
        core, timeout = self._cores[index], self._client_timeout
        return _Worker(self._open_clients, core, timeout, self._deadlines, self._slices)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._slices.memory.close()
        self._deadlines.close()

    def __enter__(self) -> WorkerLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cores_of(num_workers: int) -> list[int | None]:
    """The core that each worker stays on, if there are as many as cores; else the system puts them where there is room.

    The server needs a core now and then, and takes that of a worker.  The system would move the worker to another, where
    nothing that it works on is in the cache: its next client takes a tenth longer there.
    """
    cores = sorted(os.sched_getaffinity(0))
    return [*cores] if len(cores) == num_workers else [None] * num_workers


class _RoundSlices:
    """The end that all slices of a round have in common, where every worker sees it: written once per round."""

    def __init__(self) -> None:
        self.memory = SharedBytes()
        self._held: Array | None = None

    def begin_round(self) -> None:
        """No worker is in a conversation, so none reads what was there."""
        self._held = None

    def hold(self, shared: Array) -> bool:
        """Whether it is there now; what is another one than the round began with goes through the pipes."""
        if self._held is None and shared.nbytes <= MAX_MESSAGE_BYTES:
            self.memory.write(shared)
            self._held = shared
        return self._held is shared


class _Worker:
    """The server's end of one worker process."""

    def __init__(
        self,
        open_clients: OpenClients,
        core: int | None,
        client_timeout: float,
        deadlines: Deadlines,
        slices: _RoundSlices,
    ) -> None:
        # spawn, not fork: torch's threads do not survive a fork
        context = multiprocessing.get_context("spawn")
        self.pipe, far_end = MessagePipe.pair()
        self._slices = slices
        self._updates = SharedBytes()
        self._process: SpawnProcess = context.Process(
            target=work, args=(far_end, open_clients, core, slices.memory, self._updates), daemon=True
        )
        self._process.start()
        far_end.close()
        self.turn: Turn | None = None
        """Its client in the round; None while it is free."""
        self._plan: RoundPlan | None = None
        """That it was told last."""
        self._client_timeout = client_timeout
        self._is_ready = False
        self._has_asked = False
        self._deadlines = deadlines

    def start(self, turn: Turn, plan: RoundPlan) -> bool:
        """Begin a conversation; False if the worker is not there any more."""
        if self.pipe.is_closed or not self._process.is_alive():
            return False
        try:
            if plan is not self._plan:
                self.pipe.send(PLAN, wire.plan_to_bytes(Envelope(plan.round_index, turn.client_id), plan))
            else:
                self.pipe.send(CLIENT, CLIENT_ID.pack(turn.client_id))
        except PipeClosed:
            return False
        self._plan = plan
        self.turn = turn
        self._has_asked = False
        self._deadlines.set(self._process, self._client_timeout if self._is_ready else START_SECONDS)
        return True

    def hear(self, answer: Answer) -> bytes | ClientFailure | None:
        """Take the worker's next message; the outcome of the conversation, or None while it goes on."""
        try:
            # A worker that stops in the middle of a message does not hold the server beyond its deadline.
            kind, content = self.pipe.receive()
        except PipeClosed:
            return self._given_up()
        if kind == READY and not self._is_ready:
            self._is_ready = True
            self._deadlines.set(self._process, self._client_timeout)
            return None
        if kind == QUESTION:
            return self._reply(content, answer)
        if kind == UPDATE and self._has_asked:  # there is nothing to train without a slice that was asked for
            with suppress(ValueError, struct.error):
                # A copy: the worker writes its next one there.
                return self._finished(bytes(self._updates.read(*SIZE.unpack(content))))
        if kind == FAILURE:
            with suppress(ValueError, RecursionError):
                return self._finished(failure_from_bytes(content))
        self.close()
        return ClientFailure("its worker process sent something that is not a message")

    def _reply(self, question: bytes, answer: Answer) -> bytes | ClientFailure | None:
        assert self.turn is not None
        self._has_asked = True
        try:
            reply = answer(self.turn.client_id, question)
        except WireError as error:
            with suppress(PipeClosed):  # a worker that is gone need not be told
                self.pipe.send(REFUSED)
            return self._finished(ClientFailure(f"bad message: {error}"))
        try:
            if not isinstance(reply, Pieces):
                self.pipe.send(ANSWER, reply)
            elif self._slices.hold(reply.shared):
                self.pipe.send(SLICE, SIZE.pack(reply.shared.nbytes), reply.own)
            else:
                self.pipe.send(ANSWER, reply.own, reply.shared)
        except PipeClosed:
            return self._given_up()
        return None

    def _finished(self, outcome: bytes | ClientFailure) -> bytes | ClientFailure:
        self._deadlines.lift(self._process)
        self.turn = None
        return outcome

    def _given_up(self) -> ClientFailure:
        """The pipe is broken: the process died, or was killed at its deadline."""
        timed_out = self._deadlines.lift(self._process)
        if not timed_out:
            self._process.join(_LAST_MOMENT)
        self.close()
        if not timed_out:
            return ClientFailure(f"its worker process died with exit code {self._process.exitcode}")
        if not self._is_ready:
            return ClientFailure(f"its worker process was not ready within {START_SECONDS:g} seconds")
        return ClientFailure(
            f"sent no update within {self._client_timeout:g} seconds (server.client_timeout)"
        )

    def close(self) -> None:
        """The process ends, whatever it does at the moment; `start` will say that it is gone."""
        self._deadlines.lift(self._process)
        self.turn = None
        self.pipe.close()
        self._updates.close()
        self._process.kill()
        self._process.join()
