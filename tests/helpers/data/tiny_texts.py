"""Texts of a tiny vocabulary, padded, for the models that read tokens, and a population of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ondevice.contract.tokens import BEGIN, NUM_SPECIAL, TOKENS
from ondevice.contract.vocabulary import ExampleSet, StepSpec
from server_sim.data.texts import import_texts

VOCABULARY, LENGTH = 40, 6
SIZES = {"length": LENGTH, "layers": 1, "heads": 2, "hidden": 24}
TIED = StepSpec("tied_transformer", 8, objective="next_word", architecture_arguments=SIZES)
TOKEN = StepSpec(
    "token_transformer", 8, architecture_arguments={**SIZES, "vocabulary": VOCABULARY, "width": 16}
)
BAG = StepSpec("bag_of_words", 8, architecture_arguments={"vocabulary": VOCABULARY, "words": 5, "hidden": 12})


def tiny_texts(count: int, seed: int, vocabulary: int = VOCABULARY) -> ExampleSet:
    """Each begins with a special token and has 1 to LENGTH - 1 words of a few that its author knows."""
    random = np.random.default_rng(seed)
    known = random.choice(np.arange(NUM_SPECIAL, vocabulary), 9, replace=False)
    tokens = np.zeros((count, LENGTH), np.int64)
    tokens[:, 0] = BEGIN
    for text in tokens:
        words = random.integers(1, LENGTH)
        text[1 : 1 + words] = random.choice(known, words)
    return ExampleSet({TOKENS: tokens}, random.choice(known, count))


def import_tiny_chats(folder: Path) -> Path:
    """A population below `folder`: three people and a fourth for the test, who know 40 words."""
    random = np.random.default_rng(0)
    lines = [
        {
            "user": f"user {user}",
            "split": "test" if user == 3 else "train",
            "texts": [" ".join(f"w{word}" for word in random.integers(0, 40, 8)) for _ in range(6)],
        }
        for user in range(4)
    ]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_texts(folder / "texts.jsonl", folder / "tiny", name="tiny", vocabulary=40, length=20)
    return folder / "tiny"
