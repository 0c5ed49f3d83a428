"""Whatever bytes arrive in place of a message of any kind: read soundly, or refused with WireError and nothing else."""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import pytest
from helpers.messages.wire_messages import KINDS, assembled, encoded, parts, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ondevice.contract import wire
from ondevice.contract.wire import WireError


def refused_or_sound(kind: str, message: bytes) -> bool:
    """True if refused.  Anything accepted must be sound; any other error fails the test."""
    try:
        read(kind, message)
    except WireError:
        return True
    return False


FEWER = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("kind", KINDS)
@FEWER
@given(random=st.randoms(use_true_random=False))
def test_10000_changed_or_cut_messages_raise_nothing_but_wire_error(kind: str, random: Random) -> None:
    """150 examples of hypothesis, 70 messages each: a few bytes changed, then whole, cut short or made longer."""
    valid = encoded(kind)
    for _ in range(70):
        message = bytearray(valid)
        for _ in range(random.randint(1, 4)):
            message[random.randrange(len(message))] = random.randrange(256)
        cut = random.choice([len(message), random.randrange(len(message))])
        extra = random.choice([0, 0, random.randrange(1, 40)])
        sent = bytes(message[:cut]) + bytes(extra)
        refused = refused_or_sound(kind, sent)
        assert refused or len(sent) == len(valid)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
entry_keys = st.sampled_from(["dtype", "shape", "data_offsets", "kind", "version", "round", "client"])


@pytest.mark.parametrize("kind", KINDS)
@FEWER
@given(data=st.data(), field=entry_keys, value=json_values)
def test_strange_headers_raise_nothing_but_wire_error(
    kind: str, data: st.DataObject, field: str, value: Any
) -> None:
    header, body = parts(encoded(kind))
    key = data.draw(st.sampled_from(list(header)))
    if header[key].get(field) == value and type(header[key].get(field)) is type(value):
        return
    header[key][field] = value
    assert refused_or_sound(kind, assembled(header, body))


@FEWER
@given(st.data(), json_values)
def test_strange_settings_of_a_plan_raise_nothing_but_wire_error(data: st.DataObject, value: Any) -> None:
    """One value anywhere inside the plan's settings is replaced."""
    header, body = parts(encoded("plan"))
    plan = json.loads(header["__metadata__"]["settings"])
    inside = plan
    while True:
        key = data.draw(
            st.sampled_from(list(inside) if isinstance(inside, dict) else list(range(len(inside))))
        )
        if not isinstance(inside[key], dict | list) or not inside[key] or data.draw(st.booleans()):
            break
        inside = inside[key]
    inside[key] = value
    header["__metadata__"]["settings"] = json.dumps(plan)
    message = assembled(header, body)
    if not refused_or_sound("plan", message):  # then it is a plan like any other: it can be told to a client
        understood = wire.plan_from_bytes(message)
        assert wire.plan_from_bytes(wire.plan_to_bytes(*understood)) == understood


@pytest.mark.parametrize("kind", KINDS)
@FEWER
@given(noise=st.binary(max_size=200), claimed=st.integers(0, 300))
def test_random_bytes_are_refused(kind: str, noise: bytes, claimed: int) -> None:
    assert refused_or_sound(kind, noise)
    assert refused_or_sound(kind, struct.pack("<Q", claimed) + noise)
