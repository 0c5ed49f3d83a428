"""The federated Stack Overflow data, `stack-overflow-10k` and `stack-overflow-80k`, for next-word prediction.

TensorFlow Federated publishes what people wrote on Stack Overflow until 2019, a sentence per example:

    stackoverflow.sqlite        the tables examples(split_name, client_id, serialized_example_proto), in the order of a
                                user's sentences, and client_metadata(client_id, split_name, num_examples), of the splits
                                train, heldout and test
    stackoverflow.word_count    a word and its count per line, the most frequent first

An example is a `tf.train.Example`, whose feature `tokens` has the words of a sentence between spaces; the others
(creation_date, score, tags, title, type) are not read.  Of every user of `train` the first 256 sentences are taken, each cut
to 20 words, as "Adaptive Sparse Federated Learning in Large Output Spaces via Hashing" does.  The test asks for words of
users of `heldout`, whom no client is: some of them by chance, and the same of their sentences.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ondevice.contract.tokens import NUM_SPECIAL
from server_sim.data.made_once import made_once
from server_sim.data.population import Progress
from server_sim.data.population_files import PopulationError
from server_sim.data.published.example_proto import ExampleError, bytes_feature
from server_sim.data.published.source_folder import SourceFolder, sha256_of
from server_sim.data.streamed_texts import Described, write_streamed
from server_sim.data.texts import TextSizes, UserTexts

DATABASE, WORD_COUNTS = "stackoverflow.sqlite", "stackoverflow.word_count"
PUBLISHER = "TensorFlow Federated (stackoverflow.sqlite.lzma and stackoverflow.word_count.tar.bz2)"
ATTRIBUTION = (
    "The sentences are from Stack Overflow, written by its users, under CC-BY-SA-3.0,\n"
    "as TensorFlow Federated publishes them.\n"
)
VERSION = 1
"""Raise it when a change of this file changes the population."""

_COLUMNS = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"split_name", "client_id"},
}


@dataclass(frozen=True)
class Vocabulary:
    """A data set of these files."""

    name: str
    num_tokens: int
    """The special ones among them."""


VOCABULARIES = (Vocabulary("stack-overflow-10k", 10_000), Vocabulary("stack-overflow-80k", 80_000))


@dataclass(frozen=True)
class SentenceChoice:
    """What is taken of whom."""

    most_sentences: int = 256
    test_users: int = 1000
    length: int = 20
    most_questions: int = 20_000


def materialize(vocabulary: Vocabulary, cache: Path, source: Path, progress: Progress | None = None) -> Path:
    """The folder of the population under `cache`, read from the files in `source` on first use."""
    folder = SourceFolder(Path(source), vocabulary.name, PUBLISHER)
    database, counts = _find_database(folder), folder.find(WORD_COUNTS)
    choice = SentenceChoice()
    recipe = {
        "version": VERSION,
        "tokens": vocabulary.num_tokens,
        "choice": asdict(choice),
        # Hashing the database would take longer than all that is read of it.
        "database bytes": database.stat().st_size,
        **sha256_of(counts),
    }

    def write(directory: Path) -> None:
        words = read_words(counts, vocabulary.num_tokens - NUM_SPECIAL)
        sizes = TextSizes(vocabulary.num_tokens, choice.length, choice.most_questions)
        described = Described(vocabulary.name, recipe, ATTRIBUTION)
        write_streamed(directory, read_users(database, choice, progress), words, sizes, described)

    return made_once(cache, vocabulary.name, recipe, write)


def _find_database(folder: SourceFolder) -> Path:
    if folder.find_any(DATABASE) is None:
        packed, older = folder.find_any(f"{DATABASE}.lzma"), folder.find_any("stackoverflow_train.h5")
        if packed is not None:
            raise PopulationError(
                f"{packed} is still packed: `xz --format=lzma --decompress --keep {packed}` makes {DATABASE} of it"
            )
        if older is not None:
            raise PopulationError(
                f"{older} is the older form of these data, in HDF5; {DATABASE} is read, which took its place: "
                f"it is the file stackoverflow.sqlite.lzma of TensorFlow Federated"
            )
    return folder.find(DATABASE)


def read_words(path: Path, count: int) -> list[str]:
    """The first so many words of the word-count file."""
    words: dict[str, None] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if len(words) == count:
                break
            parts = line.split()
            if len(parts) != 2 or not parts[1].isdecimal() or parts[0] in words:
                raise PopulationError(
                    f"{path}, line {number} is {line[:60].strip()!r}; expected a word that no line before has, a space "
                    "and its count"
                )
            words[parts[0]] = None
    if len(words) < count:
        raise PopulationError(
            f"{path} has {len(words)} words; the vocabulary takes {count}: is it whole, as published?"
        )
    return list(words)


def read_users(
    database: Path, choice: SentenceChoice, progress: Progress | None = None
) -> Iterator[UserTexts]:
    """Every client, then some test users: one at a time."""
    try:
        # Read-only: a database that is not there is not made.
        with contextlib.closing(
            sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
        ) as opened:
            _check(database, opened)
            train, heldout = (_client_ids(database, opened, split) for split in ("train", "heldout"))
            if len(heldout) > choice.test_users:
                chosen = np.random.default_rng(0).choice(len(heldout), choice.test_users, replace=False)
                heldout = [heldout[number] for number in np.sort(chosen).tolist()]
            for done, client in enumerate(train, 1):
                yield UserTexts(client, False, tuple(_sentences(opened, "train", client, choice)))
                if progress is not None:
                    progress(done, len(train) + len(heldout))
            for client in heldout:
                yield UserTexts(client, True, tuple(_sentences(opened, "heldout", client, choice)))
    except sqlite3.Error as error:
        raise PopulationError(
            f"{database} cannot be read ({error}); is it the unpacked file, and whole?"
        ) from None


def _check(database: Path, opened: sqlite3.Connection) -> None:
    for table, wanted in _COLUMNS.items():
        columns = {column[1] for column in opened.execute(f"PRAGMA table_info({table})")}
        if lacking := sorted(wanted - columns):
            raise PopulationError(
                f"{database} lacks {', '.join(lacking)} in its table {table}; is it another data set?"
            )


def _client_ids(database: Path, opened: sqlite3.Connection, split: str) -> list[str]:
    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
    clients = [client for (client,) in opened.execute(query, (split,))]
    if not clients:
        splits = [name for (name,) in opened.execute("SELECT DISTINCT split_name FROM client_metadata")]
        raise PopulationError(
            f"{database} has no user of the split {split}, only of {', '.join(sorted(splits)) or 'none'}"
        )
    return clients


def _sentences(
    opened: sqlite3.Connection, split: str, client: str, choice: SentenceChoice
) -> Iterator[tuple[str, ...]]:
    """The user's first sentences, each a sequence of words."""
    query = (
        "SELECT rowid, serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
        "ORDER BY rowid LIMIT ?"
    )
    for row, example in opened.execute(query, (split, client, choice.most_sentences)):
        try:
            sentence = bytes_feature(example, "tokens").decode()
        except (ExampleError, TypeError, UnicodeDecodeError) as error:
            raise PopulationError(
                f"row {row} of the table examples, of user {client}: its tf.train.Example {error}; fetch the file again"
            ) from None
        yield tuple(sentence.split()[: choice.length])
