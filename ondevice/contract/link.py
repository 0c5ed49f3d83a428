"""Between the server and its clients: a conversation in wire bytes, whoever carries them.

The client is told a plan.  It may ask as often as its scheme needs (`Ask`), each time with a message that the server
answers, and ends with its update.  An engine holds the conversations of a round's clients, in this process, in others or on
devices, and hands their updates out in the order of the clients, so that sums of floats do not depend on who was faster.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ondevice.contract.messages.plain_text import plain_text
from ondevice.contract.safetensors_file import Array
from ondevice.contract.vocabulary import RoundPlan

Ask = Callable[[bytes], bytes]
"""A client's question to the server, as the client sees it."""


@dataclass(frozen=True)
class Pieces:
    """A message whose end is the same for all clients of a round.  `bytes` joins it; a transport that can send one piece
    after the other, or knows the end already, need not."""

    own: bytes
    shared: Array
    """One object per round, of one dimension."""

    def __len__(self) -> int:
        return len(self.own) + self.shared.nbytes

    def __bytes__(self) -> bytes:
        return b"".join((self.own, self.shared.data))


Answer = Callable[[int, bytes], bytes | Pieces]
"""The server's part: (client_id, question) -> answer.  Raises WireError for a question that cannot be answered."""


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


class Conversing(Protocol):
    """A client as an engine sees it."""

    def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
        """The whole of its round: its update message."""
        ...


class Link(Protocol):
    """Carries the conversations of a round."""

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        """Every client's update message, or why there is none, in the order of `client_ids`."""
        ...
