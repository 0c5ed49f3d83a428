"""The clients' side of `server_sim.engines.ray_link`: an actor that holds one conversation at a time, on any machine.

A conversation is a few calls.  Each hands over what the server has to say, and returns what the client says next: one byte
that says what it is, and the content, as in `server_sim.engines.worker_process`.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from ondevice.contract import wire
from ondevice.contract.link import Conversing
from ondevice.model.kept_memory import keep_freed_memory
from ondevice.tools.cache_folder import default_cache_folder
from ondevice.tools.installed_versions import installed_versions
from server_sim.engines import OpenClients
from server_sim.engines.travelling_folder import Travelling, TravellingFolder
from server_sim.engines.worker_process import FAILURE, QUESTION, UPDATE, failure_to_bytes

SAME_EVERYWHERE = ("torch", "numpy")
"""Packages whose version shows in the last bits of an update."""


Fetched = tuple[TravellingFolder, Mapping[str, Sequence[Any]]]
"""A folder that was missing, and references to the pieces of its files."""


class NodeUnfit(RuntimeError):
    """A machine that cannot train the run's clients as the server's would."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"on {socket.gethostname()}, {problem}")


@dataclass(frozen=True)
class Prepared:
    """What an actor says of itself before its first client."""

    node_id: str
    host: str
    missing: str | None = None
    """The folder that has to be sent first."""


class ClientActor:
    """Made by Ray, which calls its methods one after the other."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._conversation: _Conversation | None = None

    def prepare(
        self, clients: OpenClients, versions: Mapping[str, str], fetched: Fetched | None = None
    ) -> Prepared:
        """Make the clients, if everything that they need is here; `fetched` was not, the last time."""
        if fetched is not None:
            _keep(*fetched)
        here = installed_versions()
        for package in SAME_EVERYWHERE:
            if here.get(package) != versions.get(package):
                raise NodeUnfit(
                    f"{package} is {here.get(package)}; the server has {versions.get(package)}: "
                    "install the same on every machine"
                )
        node = ray.get_runtime_context().get_node_id(), socket.gethostname()
        if isinstance(clients, Travelling):
            places: dict[str, Path] = {}
            for name, folder in clients.folders().items():
                place = folder.find(default_cache_folder())
                if place is None:
                    return Prepared(*node, missing=name)
                places[name] = place
            clients = clients.at(places)
        self._conversation = _Conversation(clients())
        return Prepared(*node)

    def begin(self, plan: bytes) -> bytes:
        """A client is told the plan; what it says first."""
        return self._held().begin(plan)

    def go_on(self, head: bytes, shared: NDArray[np.uint8] | None) -> bytes:
        """The server's answer, of which the end may be shared by all clients of the round; what the client says next."""
        return self._held().go_on(head if shared is None else b"".join((head, shared.data)))

    def refuse(self) -> None:
        """The server does not take the question: the conversation is over."""
        self._held().refuse()

    def _held(self) -> _Conversation:
        assert self._conversation is not None, "prepare comes first"
        return self._conversation


def _keep(folder: TravellingFolder, files: Mapping[str, Sequence[Any]]) -> None:
    def pieces(references: Sequence[Any]) -> Iterator[bytes]:
        for reference in references:
            yield ray.get(reference)

    folder.keep(default_cache_folder(), {name: pieces(own) for name, own in files.items()})


class _Refused(Exception):
    """Ends a conversation; the server knows why."""


class _Conversation:
    """Clients converse in a thread of their own, which waits while the server has its say."""

    def __init__(self, open_client: Callable[[int], Conversing]) -> None:
        self._open_client = open_client
        self._plans: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._converse, name="conversations", daemon=True).start()

    def begin(self, plan: bytes) -> bytes:
        self._plans.put(plan)
        return self._said.get()

    def go_on(self, answer: bytes) -> bytes:
        self._answers.put(answer)
        return self._said.get()

    def refuse(self) -> None:
        self._answers.put(None)

    def _converse(self) -> None:
        while True:
            plan_message = self._plans.get()
            try:
                envelope, plan = wire.plan_from_bytes(plan_message)
                self._said.put(UPDATE + self._open_client(envelope.client_id).converse(plan, self._ask))
            except _Refused:
                pass
            except Exception as error:  # whatever goes wrong on a client must cost that client only
                self._said.put(FAILURE + failure_to_bytes(error))

    def _ask(self, question: bytes) -> bytes:
        self._said.put(QUESTION + question)
        answer = self._answers.get()
        if answer is None:
            raise _Refused
        return answer
