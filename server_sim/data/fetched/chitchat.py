"""Chats between strangers, for next-word prediction: 1,306 people and what each of them wrote, in the order of time.

The BYU Perception, Control and Cognition Lab's Chit-Chat Challenge, as the PyPI package chitchat-dataset has it (MIT
licence).  A client is a person with their first sentences, up to 256 as in "Adaptive Sparse Federated Learning in Large
Output Spaces via Hashing"; the test asks for words of what the same people wrote last.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ondevice.tools.registries import PypiWheel, fetch
from server_sim.data.made_once import made_once
from server_sim.data.population import Progress
from server_sim.data.population_files import PopulationError
from server_sim.data.texts import SplitByTime, TextSizes, write_texts

NAME = "chitchat"
PACKAGE = PypiWheel(
    "chitchat-dataset", "0.9.0", "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e"
)
MEMBER = "chitchat_dataset/dataset.json"
VERSION = 1
"""Raise it when a change of this file changes the population."""
SIZES = TextSizes(vocabulary=10_000, length=20)

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[.,!?]")


def materialize(cache: Path, progress: Progress | None = None) -> Path:
    """The folder of the population under `cache`, fetched and made on first use."""
    split = SplitByTime()
    recipe = {"version": VERSION, "package": asdict(PACKAGE), "sizes": asdict(SIZES), "split": asdict(split)}

    def write(directory: Path) -> None:
        chats = _read(fetch(PACKAGE, cache))
        if progress is not None:
            progress(1, 2)
        said = sentences_of(chats)
        users = [part for person in said for part in split.dealt(person, said[person])]
        write_texts(users, directory, name=NAME, recipe=recipe, sizes=SIZES)

    return made_once(cache, NAME, recipe, write)


def _read(wheel: Path) -> Any:
    """Nothing of the wheel is run."""
    with zipfile.ZipFile(wheel) as archive:
        return json.loads(archive.read(MEMBER))


def sentences_of(chats: Mapping[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """Person -> their messages of two words or more, the first first."""
    said: dict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    try:
        for chat in chats.values():
            for turn in chat["messages"]:
                for message in turn:
                    words = _WORD.findall(
                        message["text"].lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
                    )
                    if len(words) >= 2:
                        said[message["sender"]].append((message["timestamp"], tuple(words)))
    except (AttributeError, KeyError, TypeError) as error:
        raise PopulationError(f"{MEMBER} of {PACKAGE.label} is not what it was: {error!r}") from None
    return {person: [words for _, words in sorted(said[person])] for person in sorted(said)}
