"""Clients of a round in parallel processes: the same conversation as `server_sim.link`, over pipes.

A worker holds one conversation at a time: told a client and a plan, it sends the request, is answered with the slice, and
sends the update.  Updates are handed out in the order of the clients, and no client starts more than a few places ahead
of the one that is waited for, so that neither the result nor the memory depends on who is faster.  A worker that dies
costs its client, and is replaced.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

import torch

from ondevice.vocabulary import RoundPlan
from ondevice.wire import WireError
from server_sim.link import Answer, ClientFailure
from server_sim.simulated_clients import OpenClients


class WorkerLink:
    """A fixed number of worker processes, each training one client at a time."""

    def __init__(self, open_clients: OpenClients, num_workers: int) -> None:
        self._open_clients = open_clients
        self._workers = [_Worker(open_clients) for _ in range(num_workers)]

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        waiting = list(enumerate(client_ids))[::-1]
        finished: dict[int, bytes | ClientFailure] = {}
        next_out = 0
        while next_out < len(client_ids):
            for index, worker in enumerate(self._workers):
                if worker.place is None and waiting and waiting[-1][0] < next_out + 2 * len(self._workers):
                    if not worker.process.is_alive():
                        worker.close()
                        self._workers[index] = worker = _Worker(self._open_clients)
                    worker.start(*waiting.pop(), plan)
            busy = {worker.pipe: worker for worker in self._workers if worker.place is not None}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]  # wait() is typed for sockets and handles as well
                outcome = worker.hear(answer)
                if outcome is not None:
                    assert worker.place is not None
                    finished[worker.place] = outcome
                    worker.place = None
            while next_out in finished:
                yield client_ids[next_out], finished.pop(next_out)
                next_out += 1

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> WorkerLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """The server's end of one worker process."""

    def __init__(self, open_clients: OpenClients) -> None:
        # spawn, not fork: torch's threads do not survive a fork
        context = multiprocessing.get_context("spawn")
        self.pipe, far_end = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(far_end, open_clients), daemon=True)
        self.process.start()
        far_end.close()
        self.place: int | None = None
        self._client_id = -1

    def start(self, place: int, client_id: int, plan: RoundPlan) -> None:
        self.place = place
        self._client_id = client_id
        self.pipe.send((client_id, plan))

    def hear(self, answer: Answer) -> bytes | ClientFailure | None:
        """Take the worker's next message; the outcome of the conversation, or None while it goes on."""
        try:
            kind, content = self.pipe.recv()
            if kind == "request":
                self.pipe.send(answer(self._client_id, content))
                return None
        except WireError as error:
            self.pipe.send(None)  # the worker gives this client up
            return ClientFailure(f"bad message: {error}")
        except (EOFError, ConnectionError):
            self.process.join()
            return ClientFailure(f"its worker process died with exit code {self.process.exitcode}")
        outcome: bytes | ClientFailure = content if kind == "update" else ClientFailure(content)
        return outcome

    def close(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _work(pipe: Connection[Any, Any], open_clients: OpenClients) -> None:
    """The worker process: conversations until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to act on
    torch.set_num_threads(1)
    clients = open_clients()
    while True:
        try:
            client_id, plan = pipe.recv()
        except EOFError:
            return
        try:
            client = clients(client_id)
            pipe.send(("request", client.request(plan)))
            slice_message = pipe.recv()
            if slice_message is not None:
                pipe.send(("update", client.train(plan, slice_message)))
        except EOFError:
            return
        except Exception as error:  # whatever goes wrong on a client must cost that client only
            pipe.send(("failure", f"{type(error).__name__}: {error}"))
