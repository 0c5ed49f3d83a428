"""Debian's package index as extreme multi-label text, `debian-xc`: which packages does a described package depend on?

    document   the words of a package's name, section and description
    classes    what it depends on, without what comes from its own source; those of two or more documents
    client     its maintainer
    split      by source: packages of one source, which are described alike, are on one side

The index is pinned: two files of Debian 12.15, by their hashes.  A mirror keeps replaced indices under their hashes for some
time only.  Where it no longer has these, the error says so: then take the two files from an archive of Debian's past states,
or pin the hashes that today's `Release` file lists below, which makes another data set of about the same size.
"""

from __future__ import annotations

import hashlib
import lzma
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ondevice.tools.registries import DebianIndex, fetch
from server_sim.data.made_once import made_once
from server_sim.data.population import Progress
from server_sim.data.sparse_examples import FeatureHashing, SparseExamples

NAME = "debian-xc"
VERSION = 1
"""Raise it when a change of this file changes the population."""
PACKAGES = DebianIndex(
    "bookworm",
    "main/binary-amd64/Packages.xz",
    "9e0b5aabb2465b3d2e7a7fe27f9913846277833f7a2826e7767acccff5b588c5",
)
DESCRIPTIONS = DebianIndex(
    "bookworm",
    "main/i18n/Translation-en.xz",
    "a3d4a0bfd8e9242810b0885eda7c1a6e05dac15b333ddbaab03ba56f2dfa4bf0",
)
HASHING = FeatureHashing(dimension=2048, places=64)
LEAST_DOCUMENTS = 2
TEST_SHARE = 0.2
_WORD = re.compile(r"section_\w+|[a-z0-9+]{2,}")

Paragraph = dict[str, str]


@dataclass(frozen=True)
class Document:
    package: str
    source: str
    maintainer: str
    words: Counter[str]
    depends: frozenset[str]

    @property
    def is_test(self) -> bool:
        return number_of(self.source) / 2**64 < TEST_SHARE


def materialize(cache: Path, progress: Progress | None = None) -> Path:
    """The folder of the population under `cache`, made of the pinned index on first use."""
    recipe = {
        "version": VERSION,
        "packages": PACKAGES.sha256,
        "descriptions": DESCRIPTIONS.sha256,
        "hashing": asdict(HASHING),
        "least_documents": LEAST_DOCUMENTS,
        "test_share": TEST_SHARE,
    }

    def write(directory: Path) -> None:
        documents = read_documents(fetch(PACKAGES, cache), fetch(DESCRIPTIONS, cache))
        examples, class_names = examples_of(documents, HASHING, progress)
        examples.write(directory, class_names, name=NAME, recipe=recipe)

    return made_once(cache, NAME, recipe, write)


def read_documents(packages: Path, descriptions: Path) -> list[Document]:
    """Every package of the index, dependencies on its own source left out."""
    long = {entry["Description-md5"]: entry.get("Description-en", "") for entry in paragraphs(descriptions)}
    entries = list(paragraphs(packages))
    source_of = {entry["Package"]: _source(entry) for entry in entries}
    documents = []
    for entry in entries:
        source = _source(entry)
        named = _dependencies(entry.get("Depends", "")) | _dependencies(entry.get("Pre-Depends", ""))
        text = long.get(entry.get("Description-md5", ""), entry.get("Description", ""))
        section = "section_" + entry.get("Section", "").replace("/", "_")
        words = _WORD.findall(f"{entry['Package'].replace('-', ' ')} {section} {text}".lower())
        documents.append(
            Document(
                package=entry["Package"],
                source=source,
                maintainer=_address(entry.get("Maintainer", "")),
                words=Counter(words),
                depends=frozenset(name for name in named if source_of.get(name) != source),
            )
        )
    return documents


def examples_of(
    documents: list[Document], hashing: FeatureHashing, progress: Progress | None = None
) -> tuple[SparseExamples, list[str]]:
    """Documents with at least one class, and the classes' names.

    A word counts (1 + log tf) log(N / df), with df of the training documents; one of a single document says nothing.
    """
    named = Counter(name for document in documents for name in document.depends)
    class_names = sorted(name for name, count in named.items() if count >= LEAST_DOCUMENTS)
    class_id = {name: number for number, name in enumerate(class_names)}
    kept = [document for document in documents if not class_id.keys().isdisjoint(document.depends)]
    training = [document for document in kept if not document.is_test]
    frequency = Counter(word for document in training for word in document.words)
    weight = {word: math.log(len(training) / count) for word, count in frequency.items() if count > 1}
    number = {word: number_of(word) >> 1 for word in weight}
    examples = SparseExamples(hashing)
    for done, document in enumerate(kept):
        words = sorted(word for word in document.words if word in weight)
        examples.add(
            np.array([number[word] for word in words], np.int64),
            np.array([(1 + math.log(document.words[word])) * weight[word] for word in words], np.float32),
            [class_id[name] for name in document.depends if name in class_id],
            user=document.maintainer,
            is_test=document.is_test,
        )
        if progress is not None and done % 1024 == 0:
            progress(done, len(kept))
    return examples, class_names


def paragraphs(path: Path) -> Iterator[Paragraph]:
    """Of a control file: fields by name, the lines of a long one joined."""
    fields: Paragraph = {}
    key = ""
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line == "\n":
                if fields:
                    yield fields
                fields = {}
            elif line[0] in " \t":
                fields[key] += " " + line.strip()
            else:
                key, _, value = line.partition(":")
                fields[key] = value.strip()
    if fields:
        yield fields


def number_of(text: str) -> int:
    """64 bits of its hash: the same everywhere."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _source(entry: Paragraph) -> str:
    return entry.get("Source", entry["Package"]).split()[0]


def _address(maintainer: str) -> str:
    found = re.search(r"<([^>]*)>", maintainer)
    return (found.group(1) if found else maintainer).lower()


def _dependencies(field: str) -> set[str]:
    """The first alternative of each, without version and architecture."""
    first = (part.partition("|")[0].strip() for part in field.split(","))
    return {name for name in (re.sub(r"[\s(\[:<].*", "", part) for part in first) if name}
