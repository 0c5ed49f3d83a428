"""A round on two links at once brings what it brings on one."""

from __future__ import annotations

import threading

import pytest
from helpers.tiny_federation import TinyFederation, state_bytes

from fedss.split_link import SplitLink, split_evenly
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import Envelope, WireError, request_from_bytes, slice_to_bytes
from server_sim.engines.in_process import ClientFailure
from server_sim.one_round import run_round
from server_sim.server.optimizers import FedAdam, FedAvgM, ServerOptimizer

PLAN = RoundPlan(0, TinyFederation.num_classes, 5)
CLIENTS = [2, 0, 3, 1]


def split(second_share: int) -> SplitLink:
    """Two links with backends of their own: they are at work at the same time."""
    return SplitLink(TinyFederation().link(), TinyFederation().link(), second_share)


@pytest.mark.parametrize("second_share", [1, 2, 4])
@pytest.mark.parametrize("optimizer", [FedAvgM(), FedAdam()])
def test_the_server_ends_in_the_same_state(optimizer: ServerOptimizer, second_share: int) -> None:
    """Extractor, columns and what the optimizer keeps of both, after two rounds: the second starts from moments."""
    one, other = TinyFederation(optimizer=optimizer), TinyFederation(optimizer=optimizer)
    link = split(second_share)
    start = state_bytes(one)
    for round_index in range(2):
        plan = RoundPlan(round_index, TinyFederation.num_classes, 5)
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
        class_ids = request_from_bytes(request, envelope, tiny.num_classes)
        return slice_to_bytes(envelope, tiny.state.slice_model(class_ids))

    outcomes = dict(split(2).exchange(PLAN, CLIENTS, answer))
    assert list(outcomes) == CLIENTS
    assert [client_id for client_id in CLIENTS if isinstance(outcomes[client_id], ClientFailure)] == [3]
    assert answered_in == {threading.current_thread()}


def test_a_round_that_is_given_up_leaves_no_thread(tiny: TinyFederation) -> None:
    def stop(client_id: int, request: bytes) -> bytes:
        raise WireError(f"{client_id}: {len(request)} bytes too many")

    exchange = split(2).exchange(PLAN, CLIENTS * 3, stop)
    next(exchange)
    del exchange  # what an exception in the server's loop does
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("half ")]
    assert tiny.state.round_index == 0


def test_places_are_spread_evenly() -> None:
    assert split_evenly(4, 2) == [0, 1, 0, 1]
    assert split_evenly(5, 1) == [0, 0, 0, 0, 1]
    assert split_evenly(2, 3) == [1, 1]
