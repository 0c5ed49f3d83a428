"""The federated Stack Overflow files as they are published: what is taken of them, and what is said of others."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.data.stack_overflow_files import example_of, field, write_database, write_stack_overflow

from ondevice.contract.tokens import BEGIN, NUM_SPECIAL, PADDING, TOKENS, UNKNOWN
from server_sim.data.data_sets import DATA_SETS, PublishedDataSet
from server_sim.data.growing_array import GrowingArray
from server_sim.data.population import open_population
from server_sim.data.population_files import PopulationError
from server_sim.data.published.example_proto import ExampleError, bytes_feature
from server_sim.data.published.stack_overflow import (
    SentenceChoice,
    Vocabulary,
    materialize,
    read_users,
    read_words,
)

TINY = Vocabulary("tiny", 8)
USERS = {
    ("train", "0042"): ["the cat sat", "the dog . sat"],
    ("train", "0007"): ["cat the"],
    ("heldout", "0010"): ["dog sat", "the zebra cat"],
    ("test", "0042"): ["never read"],
}
COUNTS = "the 40\ncat 30\ndog 20\nsat 10\n. 5\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write_database(folder / "stackoverflow.sqlite", USERS)
    (folder / "stackoverflow.word_count").write_text(COUNTS)
    return folder


def test_sentences_become_clients_and_held_out_users_the_test(source: Path, tmp_path: Path) -> None:
    population = open_population(materialize(TINY, tmp_path / "cache", source))
    assert population.client_names == ("0007", "0042")
    assert population.class_names[NUM_SPECIAL:] == ("the", "cat", "dog", "sat")
    the, cat, dog, sat = range(4, 8)
    mixed = population.client_examples(1)
    # Rows of users are mixed in the file; a user's sentences keep their order.
    np.testing.assert_array_equal(
        mixed.features[TOKENS][:, :5],
        [[BEGIN, the, cat, PADDING, PADDING], [BEGIN, the, dog, UNKNOWN, PADDING]],
    )
    assert mixed.labels.tolist() == [sat, sat]
    assert population.test.labels.tolist() == [dog, sat, the, cat]
    assert population.test.features[TOKENS][3, :4].tolist() == [BEGIN, the, UNKNOWN, PADDING]
    assert "CC-BY-SA" in population.attribution


def test_the_first_sentences_of_a_user_are_taken_and_cut(source: Path) -> None:
    choice = SentenceChoice(most_sentences=1, length=2)
    users = {user.user: user for user in read_users(source / "stackoverflow.sqlite", choice)}
    assert users["0042"].texts == (("the", "cat"),)
    assert not users["0042"].is_test
    assert users["0010"].is_test


def test_held_out_users_are_chosen_by_chance_and_always_the_same(tmp_path: Path) -> None:
    users = {("heldout", f"{number:03d}"): ["a b"] for number in range(50)}
    write_database(tmp_path / "many.sqlite", {("train", "x"): ["a b"], **users})
    choice = SentenceChoice(test_users=5)
    chosen = [user.user for user in read_users(tmp_path / "many.sqlite", choice) if user.is_test]
    assert len(chosen) == 5
    assert chosen != [f"{number:03d}" for number in range(5)]
    assert chosen == [user.user for user in read_users(tmp_path / "many.sqlite", choice) if user.is_test]


@pytest.mark.parametrize("name", ["stack-overflow-10k", "stack-overflow-80k"])
def test_both_vocabularies_are_known_by_name(name: str, tmp_path: Path) -> None:
    data_set = DATA_SETS[name]
    assert isinstance(data_set, PublishedDataSet)
    num_tokens = {"10k": 10_000, "80k": 80_000}[name[-3:]]
    write_stack_overflow(num_tokens - NUM_SPECIAL, tmp_path / "source")
    population = open_population(data_set.materialize(tmp_path / "cache", tmp_path / "source", None))
    assert (population.num_classes, len(population.client_ids)) == (num_tokens, 4)
    assert len(population.train) == 4 * 9


def replace_file(name: str, content: bytes, source: Path) -> None:
    (source / name).write_bytes(content)


def rename_file(name: str, new: str, source: Path) -> None:
    (source / name).rename(source / new)


def change_database(statement: str, source: Path) -> None:
    with sqlite3.connect(source / "stackoverflow.sqlite") as database:
        database.execute(statement)
    database.close()


DATABASE, COUNTED = "stackoverflow.sqlite", "stackoverflow.word_count"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            partial(rename_file, DATABASE, "x"),
            "stackoverflow.sqlite does not exist; it comes with TensorFlow",
        ),
        (
            partial(rename_file, DATABASE, f"{DATABASE}.lzma"),
            "is still packed: `xz --format=lzma --decompress",
        ),
        (
            partial(rename_file, DATABASE, "stackoverflow_train.h5"),
            "is the older form of these data, in HDF5",
        ),
        (partial(rename_file, COUNTED, "x"), "word_count does not exist; it comes with TensorFlow Federated"),
        (
            partial(replace_file, DATABASE, b"no database at all" * 99),
            "cannot be read .file is not a database",
        ),
        (partial(replace_file, COUNTED, b"the 40\ncat\n"), "line 2 is 'cat'; expected a word"),
        (
            partial(replace_file, COUNTED, b"the 40\nthe 30\n"),
            "line 2 is 'the 30'; expected a word that no line",
        ),
        (
            partial(replace_file, COUNTED, b"the 40\ncat 30\n"),
            "has 2 words; the vocabulary takes 4: is it whole",
        ),
        (partial(change_database, "DROP TABLE client_metadata"), "lacks client_id, split_name in its table"),
        (
            partial(change_database, "ALTER TABLE examples RENAME serialized_example_proto TO x"),
            "lacks serialized_example_proto in its table examples",
        ),
        (
            partial(change_database, "DELETE FROM client_metadata WHERE split_name = 'heldout'"),
            "has no user of the split heldout, only of test, train",
        ),
        (
            partial(change_database, "UPDATE examples SET serialized_example_proto = x'0a05'"),
            "row 2 of the table examples, of user 0007: its tf.train.Example ends within a field",
        ),
        (
            partial(change_database, "UPDATE examples SET serialized_example_proto = 'text'"),
            "row 2 of the table examples, of user 0007",
        ),
        (partial(change_database, "DELETE FROM examples WHERE split_name = 'train'"), "has no training text"),
        (partial(change_database, "DELETE FROM examples WHERE split_name = 'heldout'"), "has no test text"),
    ],
)
def test_what_is_missing_or_damaged_is_named_and_leaves_nothing(
    damage: partial[None], message: str, source: Path, tmp_path: Path
) -> None:
    damage(source)
    with pytest.raises(PopulationError, match=message):
        materialize(TINY, tmp_path / "cache", source)
    assert not list((tmp_path / "cache").glob("*"))


def test_a_feature_is_found_among_others_and_a_cut_message_is_refused() -> None:
    example = example_of("héllo wörld")
    assert bytes_feature(example, "tokens").decode() == "héllo wörld"
    assert bytes_feature(example, "type") == b"answer"
    for name, message in (("tag", "has no feature 'tag'"), ("score", "has 0 values of bytes in the feature")):
        with pytest.raises(ExampleError, match=message):
            bytes_feature(example, name)
    for end in range(1, len(example)):
        with pytest.raises(ExampleError):
            bytes_feature(example[:end], "tokens")
    with pytest.raises(ExampleError, match="a field of kind 3"):
        bytes_feature(b"\x0b", "tokens")
    twice = field(1, field(1, field(1, b"tokens") + field(2, field(1, field(1, b"a") + field(1, b"b")))))
    with pytest.raises(ExampleError, match="has 2 values of bytes"):
        bytes_feature(twice, "tokens")


def test_words_are_read_no_further_than_needed(tmp_path: Path) -> None:
    (tmp_path / "counts").write_text("the 40\ncat 30\nno count here\n")
    assert read_words(tmp_path / "counts", 2) == ["the", "cat"]


def test_an_array_file_grows_to_any_length(tmp_path: Path) -> None:
    with GrowingArray(tmp_path / "rows.npy", np.int64, (3,)) as rows:
        for start in (0, 5, 11_000):
            rows.append(np.arange(start, start + 6).reshape(2, 3))
        with pytest.raises(ValueError, match=r"rows are float64 \[3\]; expected int64 \[3\]"):
            rows.append(np.zeros((1, 3)))
    expected = np.concatenate([np.arange(start, start + 6).reshape(2, 3) for start in (0, 5, 11_000)])
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy", mmap_mode="r"), expected)
    with GrowingArray(tmp_path / "none.npy", np.int64):
        pass
    assert np.load(tmp_path / "none.npy").shape == (0,)
