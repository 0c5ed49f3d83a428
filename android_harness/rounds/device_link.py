"""The clients of a round spread over devices: who trains where, and what becomes of failures.

Every device holds one conversation at a time, in a thread of its own; the caller's thread hands clients out, answers their
questions and hands updates back in the order of the clients (`OrderedWindow`).

    the link is lost, a file is damaged,
    an answer makes no sense                the device is set aside, looked at again with growing pauses and made ready
                                            from scratch; the client is tried again, there or elsewhere, `retries` times
    killed for memory, timed out, disk full,
    the program fails                       the client is dropped with the reason; the device goes on with others
    no program for it, golden step fails    the device is not used in this run
    no device left                          `NoDeviceLeft`: at once if none can ever be used, otherwise after `patience`
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from android_harness.devices.device import DeviceError, FailureReason
from android_harness.rounds.training_device import TrainingDevice
from ondevice.contract.conversations.cross_thread_request import Abandoned, CrossThreadRequest
from ondevice.contract.conversations.ordered_window import OrderedWindow, Turn
from ondevice.contract.link import Answer, ClientFailure
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import WireError

_PASSING = (FailureReason.GONE, FailureReason.CORRUPT, FailureReason.MISSING, FailureReason.TIMED_OUT)
"""Failures to make a device ready that another time may not happen."""
_WORTH_ANOTHER_TRY = (FailureReason.GONE, FailureReason.CORRUPT, FailureReason.MISSING)
"""Failures of a conversation that were not the client's fault and would have spared it on another device."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between two looks at a device that is away


class NoDeviceLeft(DeviceError):
    """Nothing is left to train on; the message has every device's reason."""


@dataclass
class DeviceTally:
    """What became of a device's clients over a run."""

    name: str
    trained: int = 0
    failed: int = 0
    last_failure: str = ""


class DeviceLink:
    """A set of devices that rounds are spread over.  `tell` hears what a person may want to know as it happens."""

    def __init__(
        self,
        devices: Sequence[TrainingDevice],
        *,
        retries: int = 1,
        patience: float = 60.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._seats = [_Seat(device, DeviceTally(device.name)) for device in devices]
        self._retries = retries
        self._patience = patience
        self._tell = tell
        self._events: queue.SimpleQueue[CrossThreadRequest | _Ended] = queue.SimpleQueue()
        self._none_ready_since: float | None = None  # None: no device was ever ready; infinity: one is

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Generator[tuple[int, bytes | ClientFailure], None, None]:
        """Every client's update message, or why there is none, in the order of `client_ids`."""
        window: _Window = OrderedWindow(client_ids, ahead=2 * len(self._seats))
        try:
            while not window.is_done:
                self._start_what_can(plan, window)
                event = self._next_event()
                if isinstance(event, CrossThreadRequest):
                    event.reply(answer)
                elif isinstance(event, _Ended):
                    self._take_end(event, window)
                yield from window.ready()
        except (GeneratorExit, Exception):  # Ctrl-C alone does not wait for the clients that are training now
            self._let_end()
            raise

    def tallies(self) -> list[DeviceTally]:
        return [seat.tally for seat in self._seats]

    def close(self) -> None:
        for seat in self._seats:
            seat.device.close()

    def _start_what_can(self, plan: RoundPlan, window: _Window) -> None:
        """Every idle device gets a client, one whose data it has already if it can be, or a new chance if it was away."""
        now = time.monotonic()
        for seat in self._seats:
            if seat.busy:
                continue
            if not seat.device.is_ready:
                if now >= seat.look_again_at:
                    self._start(seat, None, seat.device.make_ready)
                continue
            turn = window.start(preferred=seat.device.holds)
            if turn is not None:
                self._start(seat, turn, partial(self._converse, seat, plan, turn))
        self._check_that_one_is_left(now)

    def _start(self, seat: _Seat, turn: Turn | None, work: Callable[[], bytes | None]) -> None:
        def run() -> None:
            try:
                ended = _Ended(seat, turn, work())
            except BaseException as error:  # the caller's thread decides what it means; a bug is raised there
                ended = _Ended(seat, turn, error)
            self._events.put(ended)

        seat.busy = True
        # A daemon: Ctrl-C must be able to end this process while a phone is busy.
        threading.Thread(target=run, name=f"device {seat.device.name}", daemon=True).start()

    def _converse(self, seat: _Seat, plan: RoundPlan, turn: Turn) -> bytes:
        def ask(question: bytes) -> bytes:
            asked = CrossThreadRequest(turn.client_id, question)
            self._events.put(asked)
            return asked.wait()

        return seat.device.converse(plan, turn.client_id, ask)

    def _next_event(self) -> CrossThreadRequest | _Ended | None:
        """What happens next; None when it is time to look at a device again."""
        away = [seat.look_again_at for seat in self._seats if not seat.busy and not seat.device.is_ready]
        pause = min(away, default=math.inf) - time.monotonic()
        try:
            return self._events.get(timeout=None if pause == math.inf else max(pause, 0.0))
        except queue.Empty:
            return None

    def _take_end(self, event: _Ended, window: _Window) -> None:
        seat, turn, outcome = event.seat, event.turn, event.outcome
        seat.busy = False
        if turn is None:
            self._take_readiness(seat, outcome)
        elif isinstance(outcome, bytes):
            seat.tally.trained += 1
            window.finish(turn, outcome)
        elif isinstance(outcome, WireError):  # the server refused a question
            window.finish(turn, ClientFailure(f"bad message: {outcome}"))
        elif isinstance(outcome, DeviceError):
            reason = f"{outcome.reason}: {outcome}"
            seat.tally.failed += 1
            seat.tally.last_failure = reason
            if not seat.device.is_ready:
                self._set_aside(seat, reason, passing=True)
            if outcome.reason in _WORTH_ANOTHER_TRY and turn.tries < self._retries:
                self._tell(f"client {turn.client_id} is tried again: {reason}")
                window.try_again(turn)
            else:
                window.finish(turn, ClientFailure(reason))
        else:
            assert isinstance(outcome, BaseException)
            raise outcome

    def _take_readiness(self, seat: _Seat, outcome: object) -> None:
        if isinstance(outcome, DeviceError):
            self._set_aside(seat, f"{outcome.reason}: {outcome}", outcome.reason in _PASSING)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            seat.why_away = ""
            seat.pause = _FIRST_PAUSE
            self._none_ready_since = math.inf
            about = seat.device.description
            if about is not None:
                self._tell(
                    f"{seat.device.name} is ready: {about.abi}, {about.cores} cores, {about.ram_mb} MB"
                )

    def _set_aside(self, seat: _Seat, reason: str, passing: bool) -> None:
        if reason != seat.why_away:
            self._tell(f"{seat.device.name} is set aside{'' if passing else ' for this run'}, {reason}")
        seat.why_away = reason
        seat.look_again_at = time.monotonic() + seat.pause if passing else math.inf
        seat.pause = min(2 * seat.pause, _LONGEST_PAUSE)
        if self._none_ready_since is not None and not any(other.device.is_ready for other in self._seats):
            self._none_ready_since = min(self._none_ready_since, time.monotonic())

    def _check_that_one_is_left(self, now: float) -> None:
        if any(seat.busy or seat.device.is_ready for seat in self._seats):
            return
        never_again = all(seat.look_again_at == math.inf for seat in self._seats)
        # A device that was never there is not waited for: its name may be wrong, or it may not have been started.
        if never_again or self._none_ready_since is None or now > self._none_ready_since + self._patience:
            reasons = "; ".join(f"{seat.device.name} is {seat.why_away}" for seat in self._seats)
            raise NoDeviceLeft(FailureReason.GONE, f"no device is left to train on: {reasons}")

    def _let_end(self) -> None:
        """Waits until no thread of ours uses a device; what they bring is not wanted any more."""
        while any(seat.busy for seat in self._seats):
            event = self._events.get()
            if isinstance(event, CrossThreadRequest):
                event.refuse(Abandoned())
            else:
                event.seat.busy = False


@dataclass
class _Seat:
    """A device as the link sees it."""

    device: TrainingDevice
    tally: DeviceTally
    busy: bool = False
    why_away: str = ""
    look_again_at: float = -math.inf
    pause: float = _FIRST_PAUSE


@dataclass(frozen=True)
class _Ended:
    """A device is idle again: an update, None where it was made ready, or what went wrong."""

    seat: _Seat
    turn: Turn | None
    outcome: bytes | BaseException | None


_Window = OrderedWindow[bytes | ClientFailure]
