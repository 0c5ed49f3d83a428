"""Texts, one JSON object per user -> a population for next-word prediction.

A file of lines, each of one user, whose texts are in their order:

    {"user": "ann", "texts": ["where are you", "on my way"]}
    {"user": "ben", "split": "test", "texts": ["see you there"]}

A text becomes lower-case words, and a word one of the `vocabulary` most frequent of the training split or UNKNOWN; of
equally frequent ones the first in the alphabet.  The user of a line with the split "test" is nobody's client.  An example is
up to `length` tokens and the word that follows them; a longer text is cut into several, each word predicted once, since
training predicts at every place.  The test asks for a single word at a time, every word of every text, or as many of them as
it may ask; UNKNOWN is no question.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ondevice.contract.tokens import BEGIN, NUM_SPECIAL, PADDING, TOKENS, UNKNOWN
from ondevice.contract.vocabulary import IntArray
from server_sim.data.population import Layout, write_arrays
from server_sim.data.population_files import PopulationError

Question = TypeVar("Question")

SPECIAL = ("<padding>", "<unknown>", "<begin>", "<end>")
"""The names of the special tokens, in their order."""


@dataclass(frozen=True)
class UserTexts:
    """What one line says."""

    user: str
    is_test: bool
    texts: tuple[tuple[str, ...], ...]
    """Each a sequence of words."""


@dataclass(frozen=True)
class SplitByTime:
    """Who gets what of somebody's sentences, the first of which come first: the test is what they wrote last."""

    held_out: float = 0.1
    """The last share of everybody's sentences: the test's."""
    most_sentences: int = 256
    """The first of the others: the client's."""

    def dealt(self, user: str, sentences: Sequence[tuple[str, ...]]) -> tuple[UserTexts, UserTexts]:
        """Training, then test."""
        first_of_test = len(sentences) - int(self.held_out * len(sentences))
        own = sentences[:first_of_test][: self.most_sentences]
        return UserTexts(user, False, tuple(own)), UserTexts(user, True, tuple(sentences[first_of_test:]))


def import_texts(
    table: Path, directory: Path, *, name: str, vocabulary: int, length: int, seed: int = 0
) -> None:
    """Write the texts of `table` as a population in `directory`, over so many tokens, examples of `length` of them."""
    if vocabulary <= NUM_SPECIAL or length < 1:
        raise ValueError(
            f"vocabulary is {vocabulary} and length {length}; expected more than {NUM_SPECIAL} and at least 1"
        )
    users = list(read_users(Path(table)))
    for split, wanted in (("train", False), ("test", True)):
        if not any(user.is_test == wanted and any(user.texts) for user in users):
            raise PopulationError(
                f'{table} has no text of the split "{split}"; a population needs both splits'
            )
    recipe = {"source": Path(table).name, "vocabulary": vocabulary, "length": length}
    write_texts(users, directory, name=name, recipe=recipe, sizes=TextSizes(vocabulary, length), seed=seed)


@dataclass(frozen=True)
class TextSizes:
    """What becomes of texts."""

    vocabulary: int
    """Tokens, the special ones among them."""
    length: int
    """Tokens of an example."""
    most_questions: int = 20_000
    """Of the test, drawn from all that there are."""


def write_texts(
    users: Sequence[UserTexts],
    directory: Path,
    *,
    name: str,
    recipe: dict[str, Any],
    sizes: TextSizes,
    seed: int = 0,
) -> None:
    """Write texts, both splits of them, as a population."""
    words = most_frequent(users, sizes.vocabulary - NUM_SPECIAL)
    numbers = {word: number for number, word in enumerate(words, NUM_SPECIAL)}
    examples = [
        (user, tokens, label)
        for user in users
        if not user.is_test
        for tokens, label in examples_of(user, numbers, sizes.length)
    ]
    asked = [
        (user, tokens, label)
        for user in users
        if user.is_test
        for tokens, label in questions_of(user, numbers, sizes.length)
    ]
    examples += some_of(asked, sizes.most_questions, seed)
    tokens = padded([tokens for _, tokens, _ in examples], sizes.length)
    layout = _lay_out(examples, [*SPECIAL, *words])
    write_arrays(directory, layout, {TOKENS: tokens}, name=name, seed=seed, recipe=recipe)


def read_users(table: Path) -> Iterator[UserTexts]:
    """The lines one by one; PopulationError names the line that is none."""
    try:
        with table.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _user(f"{table}, line {number}", line)
    except FileNotFoundError:
        raise PopulationError(
            f"{table} does not exist; it should have a JSON object of user and texts per line"
        ) from None
    except UnicodeDecodeError as error:
        raise PopulationError(f"{table} is not text in UTF-8: {error}") from None


def _user(where: str, line: str) -> UserTexts:
    try:
        said: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PopulationError(
            f"{where} is not JSON ({error}); expected an object of user and texts"
        ) from None
    if not isinstance(said, dict) or set(said) - {"split"} != {"user", "texts"}:
        raise PopulationError(
            f"{where} is {line[:60].strip()}; expected an object of user, texts and, perhaps, split"
        )
    user, texts, split = said["user"], said["texts"], said.get("split", "train")
    if split not in ("train", "test"):
        raise PopulationError(f'{where}: split is {split!r}; expected "train" or "test"')
    if not isinstance(user, str) or not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise PopulationError(f"{where}: expected text for the user, and a list of text for the texts")
    return UserTexts(user, split == "test", tuple(tuple(text.lower().split()) for text in texts))


def most_frequent(users: Sequence[UserTexts], count: int) -> list[str]:
    """Words of the training split, the most frequent first."""
    counts = Counter(word for user in users if not user.is_test for text in user.texts for word in text)
    return sorted(counts, key=lambda word: (-counts[word], word))[:count]


def examples_of(user: UserTexts, numbers: dict[str, int], length: int) -> Iterator[tuple[list[int], int]]:
    """Tokens, and the token that follows them: every word of a text is predicted once."""
    for text in user.texts:
        tokens = [BEGIN, *(numbers.get(word, UNKNOWN) for word in text)]
        for first in range(0, len(tokens) - 1, length):
            piece = tokens[first : first + length + 1]
            yield piece[:-1], piece[-1]


def questions_of(user: UserTexts, numbers: dict[str, int], length: int) -> Iterator[tuple[list[int], int]]:
    """Every word that the vocabulary has, and the tokens before it."""
    for text in user.texts:
        tokens = [BEGIN, *(numbers.get(word, UNKNOWN) for word in text)]
        for place in range(1, len(tokens)):
            if tokens[place] != UNKNOWN:
                yield tokens[max(0, place - length) : place], tokens[place]


def some_of(asked: list[Question], most: int, seed: int) -> list[Question]:
    """All questions, or so many of them by chance, in their order."""
    if len(asked) <= most:
        return asked
    chosen = np.random.default_rng(seed).choice(len(asked), most, replace=False)
    return [asked[number] for number in np.sort(chosen).tolist()]


def padded(texts: Sequence[Sequence[int]], length: int) -> IntArray:
    """[texts, length]: padding behind the last token of each."""
    rows = np.full((len(texts), length), PADDING, np.int64)
    for row, tokens in zip(rows, texts, strict=True):
        row[: len(tokens)] = tokens
    return rows


def _lay_out(examples: list[tuple[UserTexts, list[int], int]], class_names: list[str]) -> Layout:
    client_names = sorted({user.user for user, _, _ in examples if not user.is_test})
    client_ids = {client_name: number for number, client_name in enumerate(client_names)}
    is_test = np.array([user.is_test for user, _, _ in examples])
    train = np.flatnonzero(~is_test)
    owners = np.array([client_ids[examples[number][0].user] for number in train.tolist()], np.int64)
    return Layout(
        class_names=class_names,
        client_names=client_names,
        num_classes=len(class_names),
        labels=np.array([label for _, _, label in examples], np.int64),
        train=train[np.argsort(owners, kind="stable")],
        test=np.flatnonzero(is_test),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owners))]).astype(np.int64),
    )
