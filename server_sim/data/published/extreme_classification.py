"""Data sets of the Extreme Classification repository, in its sparse text format.

    N D L                                  examples, features, classes
    12,5,77 3:0.25 17:1.5 ...              an example: its classes, its features with their values

The folder (`data.source`) holds the two files of a data set as they are published: `train.txt` and `test.txt`, with a prefix
such as `eurlex_` or without.  They are read line by line; an example without a class or without a feature is left out, as
all who report results on them do.  There are no users in them: everything is one client's until a partition deals it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.data.made_once import made_once
from server_sim.data.population import Progress
from server_sim.data.population_files import PopulationError
from server_sim.data.published.source_folder import sha256_of
from server_sim.data.sparse_examples import FeatureHashing, SparseExamples

VERSION = 2
"""Raise it when a change of this file changes the population."""
PROGRESS_EVERY = 4096
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Published:
    """A data set of the repository, and how its features are hashed here."""

    name: str
    num_features: int
    num_classes: int
    hashing: FeatureHashing


PUBLISHED = (
    Published("eurlex-4k", 5000, 3993, FeatureHashing(dimension=256, places=128)),
    Published("wiki10-31k", 101_938, 30_938, FeatureHashing(dimension=1024, places=256)),
    Published("lf-amazontitles-131k", 40_000, 131_073, FeatureHashing(dimension=4096, places=32)),
    Published("lf-wikiseealsotitles-320k", 40_000, 312_330, FeatureHashing(dimension=4096, places=32)),
)


@dataclass(frozen=True)
class Header:
    num_examples: int
    num_features: int
    num_classes: int


@dataclass(frozen=True)
class SparseLine:
    classes: list[int]
    features: IntArray
    amounts: FloatArray


def materialize(published: Published, cache: Path, source: Path, progress: Progress | None = None) -> Path:
    """The folder of the population under `cache`, read from the files in `source` on first use."""
    hashing = published.hashing
    files = [split_file(Path(source), split) for split in SPLITS]
    recipe = {
        "version": VERSION,
        "made_from": sha256_of(*files),
        "dimension": hashing.dimension,
        "places": hashing.places,
    }

    def write(directory: Path) -> None:
        examples = read_examples(published, Path(source), progress)
        digits = len(str(published.num_classes))
        names = [f"class {number:0{digits}d}" for number in range(published.num_classes)]
        examples.write(directory, names, name=published.name, recipe=recipe)

    return made_once(cache, published.name, recipe, write)


def read_examples(published: Published, source: Path, progress: Progress | None = None) -> SparseExamples:
    """Both splits, line by line."""
    examples = SparseExamples(published.hashing)
    for split in SPLITS:
        path = split_file(source, split)
        lines = read_lines(path)
        header = next(lines)
        assert isinstance(header, Header)
        if (header.num_features, header.num_classes) != (published.num_features, published.num_classes):
            raise PopulationError(
                f"{path} says {header.num_features} features and {header.num_classes} classes; {published.name} has "
                f"{published.num_features} and {published.num_classes}: is it another data set?"
            )
        for number, line in enumerate(lines):
            assert isinstance(line, SparseLine)
            if line.classes and len(line.features):
                examples.add(
                    line.features, line.amounts, line.classes, user="everybody", is_test=split == "test"
                )
            if progress is not None and number % PROGRESS_EVERY == 0:
                progress(number, header.num_examples)
    return examples


def split_file(source: Path, split: str) -> Path:
    found = sorted({*source.glob(f"{split}.txt"), *source.glob(f"*_{split}.txt")})
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise PopulationError(
            f"{source} has {names} of the files {split}.txt and NAME_{split}.txt; expected one of them, as published"
        )
    return found[0]


def read_lines(path: Path) -> Iterator[Header | SparseLine]:
    """The header, then a line per example; PopulationError names the line that is none."""
    with path.open(encoding="ascii", errors="replace") as file:
        header = _header(path, file.readline())
        yield header
        count = 0
        for line in file:
            count += 1
            yield _example(f"{path}, line {count + 1}", line, header)
    if count != header.num_examples:
        raise PopulationError(
            f"{path} has {count} examples, its first line says {header.num_examples}: it is not whole; download it again"
        )


def _header(path: Path, line: str) -> Header:
    words = line.split()
    if len(words) != 3 or not all(word.isdigit() and int(word) > 0 for word in words):
        raise PopulationError(
            f"{path}, line 1 is {line[:60].strip()!r}; expected three numbers: examples, features and classes"
        )
    return Header(*map(int, words))


def _example(where: str, line: str, header: Header) -> SparseLine:
    first, _, rest = line.rstrip("\n").partition(" ")
    if ":" in first:
        first, rest = "", line
    try:
        classes = [int(word) for word in first.split(",") if word]
        pairs = [word.partition(":") for word in rest.split()]
        features = np.array([int(number) for number, _, _ in pairs], np.int64)
        amounts = np.array([float(amount) for _, _, amount in pairs], np.float32)
    except (ValueError, OverflowError):
        raise PopulationError(
            f"{where} is {line[:60].strip()!r}; expected classes between commas, and FEATURE:VALUE after a space each"
        ) from None
    for what, numbers, below in (
        ("class", np.array(classes, np.int64), header.num_classes),
        ("feature", features, header.num_features),
    ):
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < below):
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise PopulationError(
                f"{where} has {what} {wrong}; the first line says that they are below {below}"
            )
    if not np.isfinite(amounts).all():
        raise PopulationError(f"{where} has a value that is no finite number")
    return SparseLine(classes, features, amounts)
