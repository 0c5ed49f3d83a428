"""A round on two engines at once: some of its clients on one, the others on the other.

Both work at the same time, each in a thread; the server's answers are given in the caller's thread alone, because they
touch the server's state.  Whichever engine is ahead waits after a few updates, so that memory does not grow with the round.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ondevice.contract.conversations.cross_thread_request import Abandoned, CrossThreadRequest
from ondevice.contract.conversations.ordered_window import OrderedWindow, Turn
from ondevice.contract.link import Answer, ClientFailure, Link
from ondevice.contract.vocabulary import RoundPlan

_AHEAD = 2
"""Updates that an engine may have ready before it waits."""


class MixedLink:
    """`second_share` of every round's clients, evenly among the others, go to the second engine."""

    def __init__(self, first: Link, second: Link, second_share: int) -> None:
        self._links = (first, second)
        self._second_share = second_share

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        sides = split_evenly(len(client_ids), self._second_share)
        # All start at once as far as the window knows: how far one is ahead of the other is each half's own affair.
        window: OrderedWindow[bytes | ClientFailure] = OrderedWindow(client_ids, ahead=len(client_ids))
        turns: tuple[list[Turn], list[Turn]] = ([], [])
        while (turn := window.start()) is not None:
            turns[sides[turn.place]].append(turn)
        events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        halves = [_Half(link, plan, own, events) for link, own in zip(self._links, turns, strict=True)]
        handed_out = iter(sides)
        try:
            while not window.is_done:
                event = events.get()
                if isinstance(event, CrossThreadRequest):
                    event.reply(answer)
                elif isinstance(event, _Brought):
                    window.finish(event.turn, event.outcome)
                else:
                    raise event
                for result in window.ready():
                    halves[next(handed_out)].may_go_on.release()
                    yield result
            for half in halves:
                half.thread.join()
        except (GeneratorExit, Exception):  # Ctrl-C alone does not wait for the clients that are training now
            _let_end(halves, events)
            raise


def _let_end(halves: Sequence[_Half], events: queue.SimpleQueue[_Event]) -> None:
    """Waits until both threads have ended; what they bring is not wanted any more."""
    for half in halves:
        half.abandon()
    while any(half.thread.is_alive() for half in halves):
        with suppress(queue.Empty):
            event = events.get(timeout=0.1)
            if isinstance(event, CrossThreadRequest):
                event.refuse(Abandoned())


def split_evenly(total: int, second: int) -> list[int]:
    """0 or 1 for each of `total` places: `second` ones, spread evenly."""
    second = min(second, total)
    return [int((place + 1) * second // total > place * second // total) for place in range(total)]


class _Half:
    """One engine's part of a round, and the thread that holds it."""

    def __init__(
        self, link: Link, plan: RoundPlan, turns: Sequence[Turn], events: queue.SimpleQueue[_Event]
    ) -> None:
        self.may_go_on = threading.Semaphore(_AHEAD)
        self._abandoned = False

        def ask(client_id: int, question: bytes) -> bytes:
            asked = CrossThreadRequest(client_id, question)
            events.put(asked)
            return asked.wait()

        def run() -> None:
            try:
                results = link.exchange(plan, [turn.client_id for turn in turns], ask)
                for turn, (_, outcome) in zip(turns, results, strict=True):
                    events.put(_Brought(turn, outcome))
                    self.may_go_on.acquire()
                    if self._abandoned:
                        return
            except BaseException as error:  # raised again in the caller's thread
                events.put(error)

        # A daemon: a second Ctrl-C ends the process while clients train.
        self.thread = threading.Thread(target=run, name="half of a round", daemon=True)
        self.thread.start()

    def abandon(self) -> None:
        """The thread ends after the clients that are training now."""
        self._abandoned = True
        self.may_go_on.release()


@dataclass(frozen=True)
class _Brought:
    """The next outcome of one side."""

    turn: Turn
    outcome: bytes | ClientFailure


_Event = CrossThreadRequest | _Brought | BaseException
