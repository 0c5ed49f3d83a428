"""A round on two links at once: some of its clients on one, the others on the other.

Both work at the same time, each in a thread; the server's answers are given in the caller's thread alone, because they
touch the server's state.  Whichever link is ahead waits after a few updates, so that memory does not grow with the round.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from android_harness.rounds.cross_thread_request import Abandoned, CrossThreadRequest
from ondevice.contract.vocabulary import RoundPlan
from server_sim.engines.in_process import Answer, ClientFailure, Link

_AHEAD = 2  # updates that a link may have ready before it waits


class SplitLink:
    """`second_share` of every round's clients, evenly among the others, go to the second link."""

    def __init__(self, first: Link, second: Link, second_share: int) -> None:
        self._links = (first, second)
        self._second_share = second_share

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        sides = split_evenly(len(client_ids), self._second_share)
        events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        halves = []
        for side, link in enumerate(self._links):
            own = [client_id for client_id, where in zip(client_ids, sides, strict=True) if where == side]
            halves.append(_Half(side, link, plan, own, events))
        try:
            for side in sides:
                half = halves[side]
                while not half.ready:
                    event = events.get()
                    if isinstance(event, CrossThreadRequest):
                        event.reply(answer)
                    elif isinstance(event, _Brought):
                        halves[event.side].ready.append(event.result)
                    else:
                        raise event
                half.may_go_on.release()
                yield half.ready.popleft()
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
    """One link's part of a round, and the thread that holds it."""

    def __init__(
        self,
        side: int,
        link: Link,
        plan: RoundPlan,
        client_ids: Sequence[int],
        events: queue.SimpleQueue[_Event],
    ) -> None:
        self.ready: deque[tuple[int, bytes | ClientFailure]] = deque()
        self.may_go_on = threading.Semaphore(_AHEAD)
        self._abandoned = False

        def ask(client_id: int, request: bytes) -> bytes:
            asked = CrossThreadRequest(client_id, request)
            events.put(asked)
            return asked.wait()

        def run() -> None:
            try:
                for result in link.exchange(plan, client_ids, ask):
                    events.put(_Brought(side, result))
                    self.may_go_on.acquire()
                    if self._abandoned:
                        return
            except BaseException as error:  # raised again in the caller's thread
                events.put(error)

        # A daemon: a second Ctrl-C ends the process while clients train.
        self.thread = threading.Thread(target=run, name=f"half {side} of a round", daemon=True)
        self.thread.start()

    def abandon(self) -> None:
        """The thread ends after the clients that are training now."""
        self._abandoned = True
        self.may_go_on.release()


@dataclass(frozen=True)
class _Brought:
    """The next result of one side."""

    side: int
    result: tuple[int, bytes | ClientFailure]


_Event = CrossThreadRequest | _Brought | BaseException
