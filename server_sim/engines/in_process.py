"""Clients one after the other, in this process: everything that passes is wire bytes all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ondevice.contract.link import Answer, ClientFailure, Conversing, Link, Trace
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import WireError
from ondevice.model.kept_memory import keep_freed_memory
from ondevice.model.one_thread import one_thread
from server_sim.engines import EngineSettings, OpenClients


@contextmanager
def open_in_process(open_clients: OpenClients, settings: EngineSettings) -> Iterator[Link]:  # noqa: ARG001
    """Whatever the settings: one client after the other, as long as each takes."""
    keep_freed_memory()
    with one_thread():  # as in a worker process
        yield InProcessLink(open_clients())


class InProcessLink:
    """One client at a time.  A client that hangs cannot be given up here: that takes another process."""

    def __init__(self, open_client: Callable[[int], Conversing]) -> None:
        self._open_client = open_client

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        for client_id in client_ids:
            yield client_id, self._converse(plan, client_id, answer)

    def _converse(self, plan: RoundPlan, client_id: int, answer: Answer) -> bytes | ClientFailure:
        try:
            client = self._open_client(client_id)
            return client.converse(plan, lambda question: bytes(answer(client_id, question)))
        except WireError as error:
            return ClientFailure(f"bad message: {error}")
        except Exception as error:  # whatever goes wrong on a client must cost that client only
            return ClientFailure(f"{type(error).__name__}: {error}", Trace.of(error))
