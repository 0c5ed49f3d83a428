"""The in-process network between the server and its clients: everything that passes is wire bytes.

An exchange with one client is a conversation: it asks (request), is answered (slice), trains, and sends its update.
`InProcessLink` holds it here, one client after the other; `server_sim.engines.workers` holds several, in other processes.
Results come in the order of the clients, so that sums of floats do not depend on who was faster.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ondevice.contract.plain_text import plain_text
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import WireError

Answer = Callable[[int, bytes], bytes]
"""The server's part of the conversation: (client_id, request) -> slice.  Raises WireError for a bad request."""


_TRACE_LINES = 60
_TRACE_LINE_CHARACTERS = 500


@dataclass(frozen=True)
class Trace:
    """Where a client's program raised an error: without it, a bug of ours would pass for one more dropped client."""

    cause: str
    """The kind of error and the line of code: the same for all clients that stumble over the same thing."""
    text: str

    @staticmethod
    def of(error: Exception) -> Trace:
        place = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error).__name__} in {place.name}, {place.filename}:{place.lineno}"
        lines = "".join(traceback.format_exception(error)).splitlines()[-_TRACE_LINES:]
        return Trace(cause, "\n".join(plain_text(line, _TRACE_LINE_CHARACTERS) for line in lines))


class ClientFailure(RuntimeError):
    """A client that could not finish its round, and why: in plain words, whatever the client had to say."""

    def __init__(self, reason: str, trace: Trace | None = None) -> None:
        super().__init__(plain_text(reason))
        self.trace = trace


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
            return ClientFailure(f"{type(error).__name__}: {error}", Trace.of(error))
