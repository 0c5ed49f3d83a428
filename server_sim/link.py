"""The in-process network between the server and its clients: everything that passes is wire bytes.

An exchange with one client is a conversation: it asks (request), is answered (slice), trains, and sends its update.
`InProcessLink` holds it here, one client after the other; `server_sim.workers` holds several at once in other processes.
Results come in the order of the clients, so that sums of floats do not depend on who was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ondevice.vocabulary import RoundPlan
from ondevice.wire import WireError

Answer = Callable[[int, bytes], bytes]
"""The server's part of the conversation: (client_id, request) -> slice.  Raises WireError for a bad request."""


class ClientFailure(RuntimeError):
    """A client that could not finish its round, and why."""


class Link(Protocol):
    """Carries the messages of a round."""

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        """Every client's update message, or why there is none, in the order of `client_ids`."""
        ...


class Conversing(Protocol):
    """A client as the link sees it."""

    def request(self, plan: RoundPlan) -> bytes: ...

    def train(self, plan: RoundPlan, slice_message: bytes) -> bytes: ...


class InProcessLink:
    """One client at a time, in this process."""

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
            return client.train(plan, answer(client_id, client.request(plan)))
        except WireError as error:
            return ClientFailure(f"bad message: {error}")
        except Exception as error:  # whatever goes wrong on a client must cost that client only
            return ClientFailure(f"{type(error).__name__}: {error}")
