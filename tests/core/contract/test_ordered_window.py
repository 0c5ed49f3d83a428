"""The ordered window: outcomes in the clients' order, nobody too far ahead, preferences as far as that allows."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondevice.contract.conversations.ordered_window import OrderedWindow, Turn


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.integers(1, 8),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_whoever_is_faster_outcomes_come_in_order_and_nobody_is_too_far_ahead(
    client_ids: list[int], ahead: int, num_workers: int, random: Random
) -> None:
    """Clients finish in any order, some of them after they had to be tried again."""
    window: OrderedWindow[str] = OrderedWindow(client_ids, ahead)
    under_way: list[Turn] = []
    out: list[tuple[int, str]] = []
    finished = 0
    while not window.is_done:
        while (
            len(under_way) < num_workers
            and (turn := window.start(lambda _: random.random() < 0.3)) is not None
        ):
            assert len(out) <= turn.place < len(out) + ahead
            assert client_ids[turn.place] == turn.client_id
            under_way.append(turn)
        assert under_way, "there is always somebody to wait for"
        turn = under_way.pop(random.randrange(len(under_way)))
        if turn.tries < 3 and random.random() < 0.3:
            window.try_again(turn)
            continue
        window.finish(turn, f"outcome {turn.place}")
        finished += 1
        assert finished - len(out) <= ahead  # what is held back is bounded too
        out.extend(window.ready())
    assert out == [(client_id, f"outcome {place}") for place, client_id in enumerate(client_ids)]
    assert window.start() is None
    assert list(window.ready()) == []


def test_there_is_no_room_until_the_first_is_done() -> None:
    window: OrderedWindow[str] = OrderedWindow([10, 11, 12, 13], ahead=2)
    first, second = window.start(), window.start()
    assert first is not None
    assert second is not None
    assert [first.client_id, second.client_id] == [10, 11]
    assert window.start() is None
    window.finish(second, "b")
    assert list(window.ready()) == []
    assert window.start() is None, "10 is still waited for"
    window.finish(first, "a")
    assert list(window.ready()) == [(10, "a"), (11, "b")]
    third = window.start()
    assert third is not None
    assert third.client_id == 12


def test_a_preferred_client_goes_first_if_it_is_near_enough() -> None:
    window: OrderedWindow[str] = OrderedWindow([10, 11, 12, 13], ahead=3)
    order = [window.start(lambda client_id: client_id == 12), window.start(lambda client_id: client_id == 13)]
    assert [turn and turn.client_id for turn in order] == [12, 10]  # 13 is one place too far
    assert window.start() is not None
    assert window.start() is None


def test_a_turn_that_is_tried_again_comes_before_those_that_wait_and_knows_how_often() -> None:
    window: OrderedWindow[str] = OrderedWindow([10, 11, 12], ahead=3)
    turn = window.start()
    assert turn is not None
    for tries in (1, 2):
        window.try_again(turn)
        again = window.start()
        assert again is turn
        assert turn.tries == tries
    assert (following := window.start()) is not None
    assert following.client_id == 11


@pytest.mark.parametrize("ahead", [1, 5])
def test_a_round_without_clients_is_done(ahead: int) -> None:
    window: OrderedWindow[str] = OrderedWindow([], ahead)
    assert window.is_done
    assert window.start() is None
