"""Between the server and its clients: a conversation in wire bytes, whoever carries them.

The client is told a plan.  It may ask as often as its scheme needs (`Ask`), each time with a message that the server
answers, and ends with its update.  An engine holds the conversations of a round's clients, in this process, in others or on
devices, and hands their updates out in the order of the clients, so that sums of floats do not depend on who was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ondevice.contract.vocabulary import RoundPlan

Ask = Callable[[bytes], bytes]
"""A client's question to the server, as the client sees it."""

Answer = Callable[[int, bytes], bytes]
"""The server's part: (client_id, question) -> answer.  Raises WireError for a question that cannot be answered."""


class ClientFailure(RuntimeError):
    """A client that could not finish its round, and why."""


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
