"""Flower as an engine: the conversations of a round on Flower's nodes, a `Link` over Flower's Grid.

Any node can train any client.  First every node is asked once for the first questions of its share of the round: they are
small.  Then nodes that have nothing to do get the next few clients with the answers that they need, and send updates or
further questions.  The shared window keeps the order, and bounds how many updates the server holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedss_flower.envelopes import Conversation, Reply, Said, pack_conversations, unpack_replies
from ondevice.contract import wire
from ondevice.contract.conversations.ordered_window import OrderedWindow, Turn
from ondevice.contract.link import Answer, ClientFailure, Link
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import Envelope, WireError
from server_sim.engines import EngineSettings, OpenClients
from server_sim.engines.worker_process import failure_from_bytes

_POLL_SECONDS = 0.3
_START_SECONDS = 600.0
"""That a node may take beside its clients: it starts a process and imports torch, on a machine that may be busy."""

Outcome = bytes | ClientFailure


@dataclass(frozen=True)
class FlowerRun:
    """What Flower gives to a ServerApp, and what its run configuration says."""

    grid: Grid
    batch: int
    """Clients in one message."""


FLOWER_RUN: ContextVar[FlowerRun] = ContextVar("FLOWER_RUN")


@contextmanager
def open_flower(_: OpenClients, settings: EngineSettings) -> Iterator[Link]:
    """The nodes open the clients themselves."""
    run = FLOWER_RUN.get()
    yield FlowerLink(run.grid, run.batch, settings.client_timeout)


@dataclass(frozen=True)
class _Block:
    """Some clients on one node, in one message."""

    node: int
    turns: Sequence[Turn]
    deadline: float


class FlowerLink:
    """`batch` clients in one message; a node that answers too late, or dies, costs the clients that it had."""

    def __init__(self, grid: Grid, batch: int, client_timeout: float) -> None:
        self._grid, self._batch, self._client_timeout = grid, batch, client_timeout

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, Outcome]]:
        nodes = sorted(self._grid.get_node_ids())
        if not nodes:
            yield from ((client_id, ClientFailure("no node is connected")) for client_id in client_ids)
            return
        half = _Round(plan, answer)
        first = OrderedWindow[Outcome](client_ids, ahead=len(client_ids))
        shares: list[list[Turn]] = [[] for _ in nodes]
        while (turn := first.start()) is not None:
            shares[turn.place % len(nodes)].append(turn)
        under_way = {
            self._push(node, half, share): self._block(node, share)
            for node, share in zip(nodes, shares, strict=True)
            if share
        }
        while under_way:
            for turn, reply in self._pull(under_way):
                half.replies[turn.place] = reply

        window: OrderedWindow[Outcome] = OrderedWindow(client_ids, ahead=2 * self._batch * len(nodes))
        while not window.is_done:
            busy = {block.node for block in under_way.values()}
            for node in (node for node in nodes if node not in busy):
                turns = half.next_turns(window, self._batch)
                if turns:
                    under_way[self._push(node, half, turns)] = self._block(node, turns)
            for turn, reply in self._pull(under_way) if under_way else ():
                half.replies[turn.place] = reply
                window.try_again(turn)
            yield from window.ready()

    def _block(self, node: int, turns: Sequence[Turn]) -> _Block:
        seconds = _START_SECONDS + self._client_timeout * len(turns)
        return _Block(node, turns, time.monotonic() + seconds)

    def _push(self, node: int, half: _Round, turns: Sequence[Turn]) -> str:
        content = pack_conversations([half.conversation(turn) for turn in turns])
        seconds = _START_SECONDS + self._client_timeout * len(turns)
        message = Message(content, node, "train.conversations", ttl=seconds)
        (message_id,) = self._grid.push_messages([message])
        return str(message_id)

    def _pull(self, under_way: dict[str, _Block]) -> Iterator[tuple[Turn, Reply | ClientFailure]]:
        """Whatever has arrived or is overdue; takes it off `under_way`."""
        for message in self._grid.pull_messages(list(under_way)):
            block = under_way.pop(message.metadata.reply_to_message_id)
            replies: dict[int, Reply] = {}
            if message.has_error():
                reason = f"node {block.node}: Flower's error {message.error.code}: {message.error.reason}"
            else:
                reason = f"node {block.node} did not mention it"
                try:
                    replies = unpack_replies(message.content)
                except ValueError as error:
                    reason = f"node {block.node} sent what is no reply: {error}"
            for turn in block.turns:
                yield turn, replies.get(turn.client_id) or ClientFailure(reason)
        for message_id, block in list(under_way.items()):
            if time.monotonic() > block.deadline:
                del under_way[message_id]
                for turn in block.turns:
                    yield turn, ClientFailure(f"node {block.node} did not answer in time")
        if under_way:
            time.sleep(_POLL_SECONDS)


class _Round:
    """How far the conversations of one round have come."""

    def __init__(self, plan: RoundPlan, answer: Answer) -> None:
        self._plan, self._answer = plan, answer
        self._answers: dict[int, tuple[bytes, ...]] = {}
        self.replies: dict[int, Reply | ClientFailure] = {}
        """Place -> what the client said last, not looked at yet."""

    def conversation(self, turn: Turn) -> Conversation:
        envelope = Envelope(self._plan.round_index, turn.client_id)
        plan = wire.plan_to_bytes(envelope, self._plan)
        return Conversation(turn.client_id, plan, self._answers.get(turn.place, ()))

    def next_turns(self, window: OrderedWindow[Outcome], most: int) -> list[Turn]:
        """Clients whose question is answered now; those that have come to their end are finished in the window."""
        turns: list[Turn] = []
        while len(turns) < most and (turn := window.start()) is not None:
            outcome = self._go_on(turn)
            if outcome is None:
                turns.append(turn)
            else:
                self._answers.pop(turn.place, None)
                window.finish(turn, outcome)
        return turns

    def _go_on(self, turn: Turn) -> Outcome | None:
        reply = self.replies.pop(turn.place)
        if isinstance(reply, ClientFailure):
            return reply
        if reply.said == Said.UPDATE:
            return reply.content
        try:
            if reply.said == Said.FAILURE:
                return failure_from_bytes(reply.content)
            answer = bytes(self._answer(turn.client_id, reply.content))
        except (WireError, ValueError, RecursionError) as error:
            return ClientFailure(f"bad message: {error}")
        self._answers[turn.place] = (*self._answers.get(turn.place, ()), answer)
        return None
