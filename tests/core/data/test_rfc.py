"""RFCs as Debian packs them: what of a text is prose, whose it is, and what is said where the packages cannot be had."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ondevice.contract.tokens import NUM_SPECIAL
from ondevice.tools.registries import RegistryError, unpack_debian_package
from server_sim.data.data_sets import DATA_SETS, DataSet
from server_sim.data.fetched.rfc import PACKAGES, AuthorSplit, fetch_enabled, read_authors
from server_sim.data.fetched.rfc_text import paragraphs_of, sentences_of
from server_sim.data.population import open_population
from server_sim.data.population_files import PopulationError
from server_sim.data.streamed_texts import Described, write_streamed
from server_sim.data.texts import TextSizes, most_frequent

RFC = """



Network Working Group                                           J. Mogul
Request for Comments: 1191                                        DECWRL

                           Path MTU Discovery

1.  Introduction

   This memo describes a technique.  It isn't new (see
   Section 2.1), but a path-
   dependent one.

       +--------+--------+
       |  type  |  code  |
       +--------+--------+

Mogul & Deering                                                 [page 1]
\f
RFC 1191                   Path MTU Discovery              November 1990

   Routers drop what is too large, and
   hosts learn of it!

   Field       Value
   code        4.

"""


def test_prose_is_kept_and_nothing_else() -> None:
    assert list(paragraphs_of(RFC)) == [
        "This memo describes a technique.  It isn't new (see Section 2.1), but a path-dependent one.",
        "Routers drop what is too large, and hosts learn of it!",
    ]
    assert list(sentences_of(RFC)) == [
        ("this", "memo", "describes", "a", "technique", "."),
        (
            *(
                "it",
                "isn't",
                "new",
                "(",
                "see",
                "section",
                "2",
                ".",
                "1",
                ")",
                ",",
                "but",
                "a",
                "path-dependent",
            ),
            "one",
            ".",
        ),
        (*("routers", "drop", "what", "is", "too", "large", ",", "and", "hosts", "learn", "of", "it"), "!"),
    ]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A package that dpkg-deb builds, unpacked as a fetched one is: three RFCs, with links to all of them."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb comes with Debian")
    root = tmp_path / "root"
    described = {"7": ["B. First", "A. Last"], "30": ["A. Last"], "200": ["B. First"], "201": []}
    for number, authors in described.items():
        folder = root / "usr/share/doc/RFC" / ("old/historic" if number == "7" else "standard")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rfc{number}.json").write_text(json.dumps({"doc_id": f"RFC{number}", "authors": authors}))
        lines = "".join(
            f"   This is another\n   sentence {place} of number {number}.\n\n" for place in range(10)
        )
        if number == "30":
            (folder / f"rfc{number}.txt").write_text(lines)
        elif number != "201":
            (folder / f"rfc{number}.txt.gz").write_bytes(gzip.compress(lines.encode()))
        links = root / "usr/share/doc/RFC/links"
        links.mkdir(exist_ok=True)
        (links / f"rfc{number}.json").symlink_to(folder / f"rfc{number}.json")
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        "Package: doc-rfc-tiny\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <n@example.org>\nDescription: tiny\n"
    )
    package = tmp_path / "doc-rfc-tiny.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", root, package], check=True, capture_output=True
    )
    unpack_debian_package(package, tmp_path / "unpacked")
    return tmp_path / "unpacked/usr/share/doc/RFC"


def test_an_author_has_what_they_wrote_first_and_the_test_what_they_wrote_last(documents: Path) -> None:
    split = AuthorSplit(least_sentences=11, held_out=0.1, most_sentences=12)
    train, test = read_authors(documents, split)
    # A. Last is first author of ten sentences only; B. First wrote RFC 7 before RFC 200.
    assert (train.user, train.is_test, test.user, test.is_test) == ("B. First", False, "B. First", True)
    assert [(text[4], text[7]) for text in train.texts] == [
        *((str(place), "7") for place in range(10)),
        *((str(place), "200") for place in range(2)),
    ]
    assert [(text[4], text[7]) for text in test.texts] == [("8", "200"), ("9", "200")]


def test_authors_become_a_population(documents: Path, tmp_path: Path) -> None:
    users = list(read_authors(documents, AuthorSplit(least_sentences=10)))
    words = most_frequent(users, 5)
    assert words == [".", "another", "is", "number", "of"]
    described = Described("rfc", {}, "Not to be passed on.\n")
    write_streamed(tmp_path / "out", users, words, TextSizes(NUM_SPECIAL + 5, 20), described)
    population = open_population(tmp_path / "out")
    assert population.client_names == ("A. Last", "B. First")
    assert [population.num_examples(client) for client in population.client_ids] == [9, 18]
    assert population.attribution == "Not to be passed on.\n"


def test_another_layout_is_named(tmp_path: Path) -> None:
    with pytest.raises(PopulationError, match=r"have no file usr/share/doc/RFC/.../rfcN.json"):
        list(read_authors(tmp_path, AuthorSplit()))
    (tmp_path / "rfc1.json").write_text('{"title": "x"}')
    with pytest.raises(
        PopulationError, match=r"rfc1.json is no description of an RFC with its authors: KeyError"
    ):
        list(read_authors(tmp_path, AuthorSplit()))


def test_where_the_section_is_not_enabled_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine without apt, and so without the section: what it says differs, what to do does not.
    monkeypatch.setenv("PATH", str(tmp_path))
    package = replace(PACKAGES[0], version="no such version")
    with pytest.raises(
        RegistryError, match=r"section non-free, .*add non-free to the Components in /etc/apt"
    ) as caught:
        fetch_enabled(package, tmp_path)
    assert "cannot fetch the Debian package doc-rfc-experimental=no such version" in str(caught.value)


def test_it_is_known_by_name() -> None:
    assert isinstance(DATA_SETS["rfc"], DataSet)
