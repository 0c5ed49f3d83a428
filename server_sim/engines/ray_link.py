"""Clients of a round in Ray actors, on this machine or on many: the conversation of `server_sim.engines.workers`, with Ray's
calls for pipes.

Whatever becomes of an actor costs its client and nothing else: one that dies or takes longer than a client may is replaced
by another, wherever Ray finds a free core.  A client whose whole node was lost is tried once more, since it is not to blame.
An update is taken from the one call that is waited for, so none counts twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from ondevice.contract import wire
from ondevice.contract.conversations.ordered_window import OrderedWindow, Turn
from ondevice.contract.link import Answer, ClientFailure, Pieces
from ondevice.contract.safetensors_file import Array
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import MAX_MESSAGE_BYTES, Envelope, WireError
from ondevice.tools.installed_versions import installed_versions
from server_sim.engines import EngineError, EngineSettings, OpenClients
from server_sim.engines.ray_actor import ClientActor, Prepared
from server_sim.engines.travelling_folder import Travelling, TravellingFolder
from server_sim.engines.worker_process import FAILURE, QUESTION, UPDATE, failure_from_bytes
from server_sim.engines.workers import START_SECONDS

RETRIES = 1
"""How often a client is tried again when its node was lost."""
_IN_THE_MAKING = "raised in its creation task"
"""What Ray says of a node that lacks this project, or whose torch does not load: it would not get better by itself."""


class RayLink:
    """A fixed number of actors, each training one client at a time, for at most `client_timeout` seconds."""

    def __init__(self, open_clients: OpenClients, num_actors: int, settings: EngineSettings) -> None:
        self._folders: Mapping[str, TravellingFolder] = (
            open_clients.folders() if isinstance(open_clients, Travelling) else {}
        )
        self._files: dict[str, dict[str, list[Any]]] = {}
        """Folder -> file -> references to its pieces, once a node has asked for it."""
        self._recipe = ray.put(open_clients)
        self._versions = installed_versions()
        self._settings = settings
        # As Ray has room: an actor that has to wait for a core waits without harm.
        self._make = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(ClientActor)
        self._actors = [self._new_actor() for _ in range(num_actors)]

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        window: OrderedWindow[bytes | ClientFailure] = OrderedWindow(client_ids, 2 * len(self._actors))
        shared = _SharedEnd()
        nobody_since = time.monotonic()
        try:
            while not window.is_done:
                for actor in self._actors:
                    turn = window.start() if actor.is_free else None
                    if turn is not None:
                        actor.begin(turn, plan, self._settings.client_timeout)
                if any(actor.turn for actor in self._actors):
                    nobody_since = time.monotonic()
                elif time.monotonic() > nobody_since + START_SECONDS:
                    while (turn := window.start()) is not None:
                        window.finish(
                            turn, ClientFailure(f"no Ray actor was ready within {START_SECONDS:g} seconds")
                        )
                for actor in self._wait(nobody_since + START_SECONDS):
                    turn, outcome = actor.turn, self._hear(actor, answer, shared)
                    if turn is not None and isinstance(outcome, _NodeLost) and turn.tries < RETRIES:
                        self._settings.note(f"{outcome}: client {turn.client_id} is tried again")
                        window.try_again(turn)
                    elif turn is not None and outcome is not None:
                        window.finish(turn, outcome)
                yield from window.ready()
        finally:
            # Left early, as by Ctrl-C: what the others were asked for is not wanted, and must not answer the next round.
            for actor in self._actors:
                if actor.turn is not None:
                    self._replace(actor)

    def _wait(self, at_most_until: float) -> list[_Actor]:
        """The actors that have something to say, or whose time is up."""
        by_call = {actor.call: actor for actor in self._actors if actor.call is not None}
        until = min([at_most_until, *(actor.deadline for actor in by_call.values())])
        seconds = max(0.0, until - time.monotonic())
        ready, _ = ray.wait(list(by_call), num_returns=1, timeout=seconds) if by_call else ([], [])
        late = [actor for actor in by_call.values() if time.monotonic() > actor.deadline]
        return [by_call[call] for call in ready] or late

    def _hear(self, actor: _Actor, answer: Answer, shared: _SharedEnd) -> bytes | ClientFailure | None:
        """Take what the actor says; the outcome of its conversation, or None while it goes on."""
        try:
            said = actor.take()
        except TimeoutError:
            self._replace(actor)
            seconds = self._settings.client_timeout
            return ClientFailure(f"sent no update within {seconds:g} seconds (server.client_timeout)")
        except RayTaskError as error:
            if actor.prepared is None:
                reason = str(error.cause).splitlines()[0]
                raise EngineError(f"a Ray node cannot train clients: {reason}") from error
            self._replace(actor)
            return ClientFailure(f"{type(error.cause).__name__}: {error.cause}")
        except RayError as error:
            if _IN_THE_MAKING in str(error):
                raise EngineError(
                    f"a Ray node cannot train clients: {str(error).splitlines()[-1]}"
                ) from error
            self._replace(actor)
            return actor.loss()
        if isinstance(said, Prepared):
            self._prepare_further(actor, said)
            return None
        outcome = actor.understand(said, answer, shared) if isinstance(said, bytes) else _no_message()
        if isinstance(outcome, _NoMessage):
            self._replace(actor)
        return outcome

    def _prepare_further(self, actor: _Actor, said: Prepared) -> None:
        if said.missing is None:
            actor.ready(said)
            return
        folder = self._folders[said.missing]
        if said.missing not in self._files:
            self._settings.note(f"{folder.path} is sent to {said.host}")
            self._files[said.missing] = {
                name: [ray.put(piece) for piece in pieces] for name, pieces in folder.files()
            }
        fetched = folder, self._files[said.missing]
        actor.call = actor.handle.prepare.remote(self._recipe, self._versions, fetched)

    def _new_actor(self) -> _Actor:
        handle = self._make.remote()
        return _Actor(handle, handle.prepare.remote(self._recipe, self._versions))

    def _replace(self, actor: _Actor) -> None:
        actor.end()
        self._actors[self._actors.index(actor)] = self._new_actor()

    def close(self) -> None:
        for actor in self._actors:
            actor.end()


class _NodeLost(ClientFailure):
    """Not the client's fault."""


class _NoMessage(ClientFailure):
    """Whoever says such a thing may say anything."""


def _no_message() -> _NoMessage:
    return _NoMessage("its worker process sent something that is not a message")


class _Actor:
    """The server's end of one actor."""

    def __init__(self, handle: Any, call: Any) -> None:
        self.handle = handle
        self.call = call
        """What is waited for; None while the actor is free."""
        self.prepared: Prepared | None = None
        self.turn: Turn | None = None
        self.deadline = float("inf")
        self._has_asked = False

    @property
    def is_free(self) -> bool:
        return self.prepared is not None and self.turn is None

    def ready(self, said: Prepared) -> None:
        self.prepared, self.call = said, None

    def begin(self, turn: Turn, plan: RoundPlan, client_timeout: float) -> None:
        self.turn = turn
        self._has_asked = False
        self.deadline = time.monotonic() + client_timeout
        self.call = self.handle.begin.remote(
            wire.plan_to_bytes(Envelope(plan.round_index, turn.client_id), plan)
        )

    def take(self) -> Any:
        """What it says.  TimeoutError if it does not, and Ray's errors."""
        ready, _ = ray.wait([self.call], timeout=0)
        if not ready:
            raise TimeoutError
        return ray.get(self.call)

    def understand(self, said: bytes, answer: Answer, shared: _SharedEnd) -> bytes | ClientFailure | None:
        assert self.turn is not None
        kind, content = said[:1], said[1:]
        if len(said) > MAX_MESSAGE_BYTES + 1:
            return _no_message()
        if kind == QUESTION:
            self._has_asked = True
            try:
                reply = answer(self.turn.client_id, content)
            except WireError as error:
                self.handle.refuse.remote()
                return self._finished(ClientFailure(f"bad message: {error}"))
            self.call = self.handle.go_on.remote(*shared.of(reply))
            return None
        if kind == UPDATE and self._has_asked:  # there is nothing to train without a slice that was asked for
            return self._finished(content)
        if kind == FAILURE:
            with suppress(ValueError, RecursionError):
                return self._finished(failure_from_bytes(content))
        return _no_message()

    def _finished(self, outcome: bytes | ClientFailure) -> bytes | ClientFailure:
        self.call, self.turn, self.deadline = None, None, float("inf")
        return outcome

    def loss(self) -> ClientFailure:
        """It died: alone, or with its node."""
        if self.prepared is None:
            return ClientFailure("its worker process died before it was ready")
        node = next((node for node in ray.nodes() if node["NodeID"] == self.prepared.node_id), None)
        where = f"Ray node {self.prepared.host} ({self.prepared.node_id[:8]})"
        if node is None or not node["Alive"]:
            return _NodeLost(f"its {where} died")
        return ClientFailure(f"its worker process died on {where}")

    def end(self) -> None:
        self.call, self.turn, self.deadline = None, None, float("inf")
        with suppress(RayError):
            ray.kill(self.handle)


class _SharedEnd:
    """The dense part of a round's slices: the same for all its clients, so it is put into Ray's object store once, and
    travels to every node once.  What a client alone gets, its rows, comes before it."""

    def __init__(self) -> None:
        self._known: Array | None = None
        self._reference: Any = None

    def of(self, message: bytes | Pieces) -> tuple[bytes, Any]:
        """What is the client's own, and a reference to the rest; the whole message where nothing is shared."""
        if not isinstance(message, Pieces):
            return message, None
        if message.shared is not self._known:
            self._known, self._reference = message.shared, ray.put(message.shared.view(np.uint8))
        return message.own, self._reference
