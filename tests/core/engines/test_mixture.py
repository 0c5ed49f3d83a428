"""A round on two engines at once brings what it brings on one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from helpers.federations.tiny_federation import TinyFederation, state_bytes

from ondevice.contract.choice import Choice
from ondevice.contract.link import Answer, ClientFailure
from ondevice.contract.vocabulary import COLUMNS, RoundPlan
from ondevice.contract.wire import Envelope, WireError, request_from_bytes, slice_to_bytes
from server_sim.engines.mixture import MixedLink, split_evenly
from server_sim.one_round import run_round
from server_sim.server.optimizers import FedAdam, FedAvgM, ServerOptimizer

TABLES = {COLUMNS: TinyFederation.num_classes}
CLIENTS = [2, 0, 3, 1]


def plan_of(round_index: int) -> RoundPlan:
    return RoundPlan(
        round_index, TABLES, Choice("uniform_negatives", {"num_negatives": 5}), Choice("uniform")
    )


PLAN = plan_of(0)


def mixed(second_share: int) -> MixedLink:
    """Two engines with backends of their own: they are at work at the same time."""
    return MixedLink(TinyFederation().link(), TinyFederation().link(), second_share)


@pytest.mark.parametrize("second_share", [1, 2, 4])
@pytest.mark.parametrize("optimizer", [FedAvgM(), FedAdam()])
def test_the_server_ends_in_the_same_state(optimizer: ServerOptimizer, second_share: int) -> None:
    """Extractor, columns and what the optimizer keeps of both, after two rounds: the second starts from moments."""
    one, other = TinyFederation(optimizer=optimizer), TinyFederation(optimizer=optimizer)
    link = mixed(second_share)
    start = state_bytes(one)
    for round_index in range(2):
        plan = plan_of(round_index)
        run_round(one.state, plan, CLIENTS, one.link(), one.aggregator())
        run_round(other.state, plan, CLIENTS, link, other.aggregator())
    assert state_bytes(other) == state_bytes(one)
    assert not set(state_bytes(one)) & set(start)


def test_answers_are_given_in_the_servers_thread_and_a_refusal_costs_that_client(
    tiny: TinyFederation,
) -> None:
    answered_in = set()

    def answer(client_id: int, request: bytes) -> bytes:
        answered_in.add(threading.current_thread())
        if client_id == 3:
            raise WireError("not this one")
        envelope = Envelope(PLAN.round_index, client_id)
        ids = request_from_bytes(request, envelope, TABLES)
        return slice_to_bytes(envelope, tiny.state.slice_model(ids))

    outcomes = dict(mixed(2).exchange(PLAN, CLIENTS, answer))
    assert list(outcomes) == CLIENTS
    assert [client_id for client_id in CLIENTS if isinstance(outcomes[client_id], ClientFailure)] == [3]
    assert answered_in == {threading.current_thread()}


def refuse(client_id: int, request: bytes) -> bytes:
    raise WireError(f"{client_id}: {len(request)} bytes too many")


def test_a_round_that_is_given_up_leaves_no_thread(tiny: TinyFederation) -> None:
    exchange = mixed(2).exchange(PLAN, CLIENTS * 3, refuse)
    next(exchange)
    del exchange  # what an exception in the server's loop does
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("half ")]
    assert tiny.state.round_index == 0


class Forgetful:
    """An engine that is done before its clients are."""

    def exchange(
        self,
        plan: RoundPlan,  # noqa: ARG002
        client_ids: Sequence[int],
        answer: Answer,  # noqa: ARG002
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        yield client_ids[0], b"an update"


def test_an_engine_that_forgets_a_client_ends_the_round_and_leaves_no_thread() -> None:
    link = MixedLink(TinyFederation().link(), Forgetful(), second_share=2)
    with pytest.raises(ValueError, match="is shorter than"):
        list(link.exchange(PLAN, CLIENTS, refuse))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("half ")]


def test_places_are_spread_evenly() -> None:
    assert split_evenly(4, 2) == [0, 1, 0, 1]
    assert split_evenly(5, 1) == [0, 0, 0, 0, 1]
    assert split_evenly(2, 3) == [1, 1]
