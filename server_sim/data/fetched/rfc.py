"""`rfc`: the Requests for Comments, for next-word prediction at 80,000 words; their first authors are the clients.

Debian has the RFCs until January 2023 in eight packages of its section non-free, since they may be copied and not changed:

    usr/share/doc/RFC/standard/rfc959.txt.gz     the text; small ones are not compressed
    usr/share/doc/RFC/standard/rfc959.json       doc_id, authors, ...; other folders for other kinds, old/ for obsolete ones
    usr/share/doc/RFC/links/                     links to all of them

They are fetched only where the machine's apt has that section enabled.  A client is an author with 100 sentences or more,
in the order of the RFCs' numbers, which is that of time.  The test is what the same people wrote last.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ondevice.contract.tokens import NUM_SPECIAL
from ondevice.tools.registries import DebianPackage, RegistryError, fetch, unpack_debian_package
from server_sim.data.fetched.rfc_text import sentences_of
from server_sim.data.made_once import made_once
from server_sim.data.population import Progress
from server_sim.data.population_files import PopulationError
from server_sim.data.streamed_texts import Described, write_streamed
from server_sim.data.texts import SplitByTime, TextSizes, UserTexts, most_frequent

NAME = "rfc"
RELEASE = "20230121-1"
PACKAGES = tuple(
    DebianPackage(f"doc-rfc-{part}", RELEASE, sha256)
    for part, sha256 in (
        ("experimental", "bff38cd2d63f0f85ed7eaf954845f34bbaba56dfe3111c9e3e07624296889817"),
        ("fyi-bcp", "d1db7332103b14ac2ce4e9e09188e38b3ade332bcc791990c7eb8064333a2b9e"),
        ("informational", "143e78778eda9f187548b74028e98acf64ed42e2ea075af0774ca3bbcb0c6d01"),
        ("misc", "395ce1db9ecbd281e162984aa6416487702cfa79f5e9d508522db55645ab20dc"),
        ("old-std", "13aa366cbed958a3decc3a89e32c058746764906e1045b5cd00425b1be0ffc8a"),
        ("others", "2b36a22145dd3fcb380079706d1a39afa7714499018d0a607a32325ead292500"),
        ("std", "b9bfead1a230da198ab96ce70cc9fbb64dc600d914c1504eeb4c19e29f95734b"),
        ("std-proposed", "b34f60b4bee98891524a2c2508f3d4dcb1e1468a2bd26e0a5f5aecf95806eea0"),
    )
)
SIZES = TextSizes(vocabulary=80_000, length=20)
ATTRIBUTION = (
    "The texts are Requests for Comments, Copyright (C) The Internet Society or the IETF Trust and their authors,\n"
    f"of the Debian packages doc-rfc-* {RELEASE} (section non-free).\n"
    "They may be copied, but not changed: do not pass this folder on.\n"
)
_FOLDER = "usr/share/doc/RFC"
_NUMBER = re.compile(r"rfc(\d+)\.json")


@dataclass(frozen=True)
class AuthorSplit(SplitByTime):
    """Who is a client, and who gets what of their own sentences."""

    least_sentences: int = 100


def materialize(cache: Path, progress: Progress | None = None) -> Path:
    """The folder of the population under `cache`, fetched and made on first use."""
    split = AuthorSplit()
    recipe = {
        "version": 1,
        "packages": [asdict(package) for package in PACKAGES],
        "sizes": asdict(SIZES),
        "split": asdict(split),
    }

    def write(directory: Path) -> None:
        with tempfile.TemporaryDirectory() as unpacked:
            for package in PACKAGES:
                unpack_debian_package(fetch_enabled(package, cache), Path(unpacked))
            users = list(read_authors(Path(unpacked) / _FOLDER, split, progress))
        words = most_frequent(users, SIZES.vocabulary - NUM_SPECIAL)
        write_streamed(directory, users, words, SIZES, Described(NAME, recipe, ATTRIBUTION))

    return made_once(cache, NAME, recipe, write)


def fetch_enabled(package: DebianPackage, cache: Path) -> Path:
    """The package; where it cannot be had, what has to be enabled before."""
    try:
        return fetch(package, cache)
    except RegistryError as error:
        raise RegistryError(
            f"{NAME} is made of packages of Debian's section non-free, which this machine's apt may not have: {error}.  "
            "If you agree to the licence of the RFCs, add non-free to the Components in /etc/apt/sources.list.d/ (or "
            "sources.list) and run again; nothing of it is installed"
        ) from None


def read_authors(folder: Path, split: AuthorSplit, progress: Progress | None = None) -> Iterator[UserTexts]:
    """Every author's training sentences, then their test sentences."""
    documents = _by_author(folder)
    for done, author in enumerate(sorted(documents), 1):
        said = [sentence for path in documents[author] for sentence in sentences_of(_text(path))]
        if len(said) >= split.least_sentences:
            yield from split.dealt(author, said)
        if progress is not None:
            progress(done, len(documents))


def _by_author(folder: Path) -> dict[str, list[Path]]:
    """First author -> the descriptions of what they wrote, the oldest first."""
    numbered: dict[int, Path] = {}
    for path in folder.rglob("rfc*.json"):
        found = _NUMBER.fullmatch(path.name)
        # links/ names every document once more.
        if found and not path.is_symlink():
            numbered[int(found.group(1))] = path
    if not numbered:
        raise PopulationError(
            f"the packages doc-rfc-* have no file {_FOLDER}/.../rfcN.json; is their layout another one?"
        )
    documents: dict[str, list[Path]] = defaultdict(list)
    for number in sorted(numbered):
        path = numbered[number]
        try:
            authors = json.loads(path.read_text(encoding="utf-8"))["authors"]
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise PopulationError(
                f"{path.name} is no description of an RFC with its authors: {error!r}"
            ) from None
        if authors:
            documents[authors[0]].append(path)
    return documents


def _text(description: Path) -> str:
    """The text beside it; some of the oldest and newest RFCs have none."""
    for text, opened in ((".txt.gz", gzip.open), (".txt", open)):
        path = description.with_suffix(text)
        if path.exists():
            with opened(path, "rt", encoding="utf-8", errors="replace") as file:
                return str(file.read())
    return ""
