"""The clients of a round that are under way: handed out as there is room, their outcomes given back in order.

No client starts more than a few places ahead of the one that is waited for, so that neither the result nor the memory
depends on who is faster.  Every engine that holds several conversations at once uses this window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Outcome = TypeVar("Outcome")


@dataclass
class Turn:
    """A client that trains, and its place in the round."""

    place: int
    client_id: int
    tries: int = 0


class OrderedWindow(Generic[Outcome]):
    """`ahead` is how many places beyond the one that is waited for may be under way or done."""

    def __init__(self, client_ids: Sequence[int], ahead: int) -> None:
        self._waiting = [Turn(place, client_id) for place, client_id in enumerate(client_ids)]
        self._client_ids = client_ids
        self._ahead = ahead
        self._finished: dict[int, Outcome] = {}
        self._next_out = 0

    @property
    def is_done(self) -> bool:
        return self._next_out == len(self._client_ids)

    def start(self, preferred: Callable[[int], bool] = lambda _: False) -> Turn | None:
        """The next client to train, one that is `preferred` if there is one near enough; None while there is no room."""
        near = [turn for turn in self._waiting if turn.place < self._next_out + self._ahead]
        turn = next((turn for turn in near if preferred(turn.client_id)), next(iter(near), None))
        if turn is not None:
            self._waiting.remove(turn)
        return turn

    def try_again(self, turn: Turn) -> None:
        """It did not come to an end, through no fault of the client's."""
        turn.tries += 1
        self._waiting.insert(0, turn)

    def finish(self, turn: Turn, outcome: Outcome) -> None:
        self._finished[turn.place] = outcome

    def ready(self) -> Iterator[tuple[int, Outcome]]:
        """What can be handed out now, in the order of the clients."""
        while self._next_out in self._finished:
            outcome = self._finished.pop(self._next_out)
            self._next_out += 1
            yield self._client_ids[self._next_out - 1], outcome
