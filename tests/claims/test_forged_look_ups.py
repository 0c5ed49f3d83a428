"""A client that looks rows up in tables that the server does not have is refused, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, state_bytes

from ondevice.contract.link import Ask
from ondevice.contract.messages import lookup
from ondevice.contract.messages.envelope import Envelope, kind_of
from ondevice.contract.messages.lookup import Lookup
from ondevice.contract.vocabulary import COLUMNS, RoundPlan
from server_sim.engines.in_process import InProcessLink
from server_sim.one_round import RoundReport, RoundRules, run_round
from server_sim.schemes.nearest import Nearest

SCHEME = Nearest(num_negatives=8, num_random=3, num_bits=1, num_tables=30)


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (lambda told: Lookup(np.array([SCHEME.num_tables << 1]), told), "expected 1 or more below 60"),
        (lambda told: Lookup(np.array([3]), told + 1), "the client has hashed for other tables"),
    ],
    ids=["a bucket out of range", "tables of another version"],
)
def test_a_look_up_that_does_not_fit_costs_its_client_alone(
    forged: Callable[[int], Lookup], reason: str, tiny: TinyFederation
) -> None:
    """The round goes on without it, and ends where a round of the others ends."""
    others = TinyFederation()
    fingerprint = int(SCHEME.sampler().settings["fingerprint"])

    class Forger:
        def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
            def changed(question: bytes) -> bytes:
                if kind_of(question) == "lookup":
                    question = lookup.lookup_to_bytes(Envelope(0, 1), forged(fingerprint))
                return ask(question)

            return tiny.client(1).converse(plan, changed)

    def play_round(federation: TinyFederation, clients: list[int]) -> RoundReport:
        rules = RoundRules(index=SCHEME.open_index(federation.state))
        link = InProcessLink(lambda number: Forger() if number == 1 else federation.client(number))
        plan = RoundPlan(0, {COLUMNS: federation.num_classes}, SCHEME.sampler(), SCHEME.weighting())
        return run_round(federation.state, plan, clients, link, federation.aggregator(), rules)

    report = play_round(tiny, [0, 1, 2])
    assert list(report.dropped) == [1]
    assert reason in str(report.dropped[1])
    play_round(others, [0, 2])
    assert state_bytes(tiny) == state_bytes(others)
