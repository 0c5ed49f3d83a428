"""Texts of very many users -> a population for next-word prediction, user by user: it takes the memory of one of them.

What becomes of a text is as in `server_sim.data.texts`.  The vocabulary is known before, so one pass is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ondevice.contract.tokens import NUM_SPECIAL, TOKENS
from server_sim.data.growing_array import GrowingArray
from server_sim.data.population import unfinished
from server_sim.data.population_files import PopulationError, write_attribution, write_manifest
from server_sim.data.texts import SPECIAL, TextSizes, UserTexts, examples_of, padded, questions_of, some_of

Pair = tuple[list[int], int]
"""Tokens, and the one that follows."""


@dataclass(frozen=True)
class Described:
    """What a population says of itself beside its arrays."""

    name: str
    recipe: dict[str, Any]
    attribution: str = ""
    seed: int = 0
    """Of the questions that are chosen."""


def write_streamed(
    directory: Path,
    users: Iterable[UserTexts],
    words: Sequence[str],
    sizes: TextSizes,
    described: Described,
) -> None:
    """Write the texts of `users`, each of whom comes once in a split, over the vocabulary `words`.

    Clients are numbered as they come.  A user without an example is left out.  The test's questions are gathered in memory:
    `users` should have no more of them than fit there.
    """
    numbers = {word: number for number, word in enumerate(words, NUM_SPECIAL)}
    client_names: list[str] = []
    asked: list[Pair] = []
    with unfinished(Path(directory)) as folder:
        with ExitStack() as files:
            tokens, labels, offsets = _client_files(folder, sizes.length, files)
            offsets.append(np.zeros(1, np.int64))
            for user in users:
                if user.is_test:
                    asked.extend(questions_of(user, numbers, sizes.length))
                elif _append(tokens, labels, examples_of(user, numbers, sizes.length), sizes.length):
                    client_names.append(user.user)
                    offsets.append(np.array([labels.num_rows], np.int64))
            num_train = labels.num_rows
        chosen = some_of(asked, sizes.most_questions, described.seed)
        if not num_train or not chosen:
            lacking = "training text" if not num_train else "test text with a word of the vocabulary"
            raise PopulationError(f"{described.name} has no {lacking}; a population needs both splits")
        np.save(folder / f"test_{TOKENS}.npy", padded([tokens for tokens, _ in chosen], sizes.length))
        np.save(folder / "test_labels.npy", np.array([label for _, label in chosen], np.int64))
        write_attribution(folder, described.attribution)
        write_manifest(
            folder,
            {
                "name": described.name,
                "features": {TOKENS: {"dtype": "int64", "shape": [sizes.length]}},
                "tables": {},
                "seed": described.seed,
                "recipe": described.recipe,
                "num_classes": NUM_SPECIAL + len(words),
                "num_train_examples": num_train,
                "num_test_examples": len(chosen),
                "class_names": [*SPECIAL, *words],
                "client_names": client_names,
            },
        )


def _client_files(
    folder: Path, length: int, files: ExitStack
) -> tuple[GrowingArray, GrowingArray, GrowingArray]:
    tokens = files.enter_context(GrowingArray(folder / f"client_{TOKENS}.npy", np.int64, (length,)))
    labels = files.enter_context(GrowingArray(folder / "client_labels.npy", np.int64))
    offsets = files.enter_context(GrowingArray(folder / "client_offsets.npy", np.int64))
    return tokens, labels, offsets


def _append(tokens: GrowingArray, labels: GrowingArray, examples: Iterator[Pair], length: int) -> bool:
    """Whether there were any."""
    pairs = list(examples)
    if pairs:
        tokens.append(padded([text for text, _ in pairs], length))
        labels.append(np.array([label for _, label in pairs], np.int64))
    return bool(pairs)
