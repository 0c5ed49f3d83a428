"""The federated Stack Overflow files, tiny: the same tables, indices and messages, written without TensorFlow."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

SCHEMA = """
CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
CREATE INDEX idx_examples_client_id ON examples (client_id);
CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
CREATE INDEX idx_metadata_client_id ON client_metadata (client_id);
"""


def varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def example_of(tokens: str) -> bytes:
    """With the six features that the published ones have, in an order that is not the alphabet's."""
    texts = {
        "type": "answer",
        "title": "getting started with version control",
        "creation_date": "2010-01-08 09:34:05 UTC",
        "tokens": tokens,
        "tags": "git|svn|version-control",
    }
    features = {name: field(1, field(1, text.encode())) for name, text in texts.items()}
    # A score below zero takes ten bytes; packed, as int64 lists are written.
    features["score"] = field(3, field(1, varint((1 << 64) - 3)))
    entries = [field(1, field(1, name.encode()) + field(2, value)) for name, value in features.items()]
    return field(1, b"".join(entries))


def write_database(path: Path, users: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """(split, user) -> sentences; users' rows are mixed, as they are in the published file."""
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        for (split, user), sentences in users.items():
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, len(sentences)))
        longest = max(map(len, users.values()))
        for number in range(longest):
            for (split, user), sentences in users.items():
                if number < len(sentences):
                    row = (split, user, example_of(sentences[number]))
                    database.execute("INSERT INTO examples VALUES (?, ?, ?)", row)
    database.close()


def write_stack_overflow(num_words: int, source: Path) -> None:
    """Six users whose words come in a fixed order, two of them held out, and a word-count file of so many words."""
    source.mkdir(parents=True, exist_ok=True)
    words = [f"w{number:05d}" for number in range(num_words)]
    users = {
        (split, f"{number:08d}"): [" ".join(words[start : start + 6]) for start in range(number, number + 9)]
        for split, numbers in (("train", (11, 2, 33, 4)), ("heldout", (10, 20)), ("test", (11,)))
        for number in numbers
    }
    write_database(source / "stackoverflow.sqlite", users)
    lines = [f"{word} {2 * num_words - number}\n" for number, word in enumerate(words)]
    (source / "stackoverflow.word_count").write_text("".join(lines))
