"""Chats as texts: whose words, in which order, for whom."""

from __future__ import annotations

import pytest

from server_sim.data.fetched.chitchat import sentences_of
from server_sim.data.population_files import PopulationError
from server_sim.data.texts import SplitByTime

APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"


def message(sender: str, timestamp: str, text: str) -> dict[str, str]:
    return {"sender": sender, "timestamp": timestamp, "text": text}


def test_a_persons_messages_come_in_the_order_of_time_over_all_of_their_chats() -> None:
    chats = {
        "first": {
            "messages": [
                [message("ann", "2020-05-02", "See you TOMORROW!")],
                [message("ben", "2020-05-02", "ok")],
            ]
        },
        "second": {
            "messages": [
                [
                    message("ann", "2020-05-01", f"it{APOSTROPHE}s me, again"),
                    message("ann", "2020-05-03", "bye now"),
                ]
            ]
        },
    }
    # One word is no text to predict from, so ben has said nothing.
    assert sentences_of(chats) == {
        "ann": [("it's", "me", ",", "again"), ("see", "you", "tomorrow", "!"), ("bye", "now")]
    }


def test_what_somebody_wrote_last_is_the_test_and_the_first_of_the_rest_are_the_clients() -> None:
    said: list[tuple[str, ...]] = [("word", str(number)) for number in range(20)]
    train, test = SplitByTime(held_out=0.1, most_sentences=5).dealt("ann", said)
    assert (train.user, train.is_test, [words[1] for words in train.texts]) == ("ann", False, list("01234"))
    assert (test.is_test, [words[1] for words in test.texts]) == (True, ["18", "19"])


def test_a_file_of_another_shape_is_named() -> None:
    with pytest.raises(
        PopulationError, match=r"dataset.json of PyPI wheel chitchat-dataset==0.9.0 is not what it was"
    ):
        sentences_of({"first": {"turns": []}})
