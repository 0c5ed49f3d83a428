"""Icons in the form of the npm package, a few made ones: classes, licences, clients, copies, the test's families."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ondevice.tools.registries import RegistryError
from server_sim.data.fetched.icon_classes import (
    Drawing,
    class_of,
    held_out_families,
    select_drawings,
    shards,
)
from server_sim.data.fetched.icon_rendering import render, without_near_copies
from server_sim.data.fetched.icon_sets import IconSet, attribution, read_icon_sets
from server_sim.data.fetched.icons import Preset, write_icons
from server_sim.data.population import open_population


def square(left: float, top: float, side: float) -> str:
    return f'<path fill="currentColor" d="M{left} {top}h{side}v{side}h-{side}z"/>'


def document(prefix: str, icons: dict[str, str], licence: str | None = "MIT") -> dict[str, Any]:
    return {
        "prefix": prefix,
        "info": {
            "name": prefix.title(),
            "author": {"name": f"Author of {prefix}", "url": f"https://example.org/{prefix}"},
            "license": {} if licence is None else {"title": "its licence", "spdx": licence},
        },
        "icons": {name: {"body": body} for name, body in icons.items()},
        "width": 24,
        "height": 24,
    }


def tarball(folder: Path, *documents: dict[str, Any]) -> Path:
    """As npm packs it: the sets are files of package/json/, beside others."""
    path = folder / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in [
            ("package/package.json", {"name": "@iconify/json"}),
            *((f"package/json/{entry['prefix']}.json", entry) for entry in documents),
        ]:
            data = json.dumps(content).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def one_set(prefix: str, icons: dict[str, str], licence: str = "MIT") -> IconSet:
    boxes = dict.fromkeys(icons, (0.0, 0.0, 24.0, 24.0))
    return IconSet(prefix, prefix, "somebody", "", licence, icons, boxes)


def test_sets_are_read_from_the_package_by_prefix(tmp_path: Path) -> None:
    first, second = read_icon_sets(
        tarball(
            tmp_path, document("zoo", {"cat": square(1, 1, 5)}), document("art", {"cat": square(2, 2, 5)})
        )
    )
    assert (first.prefix, second.prefix, second.author) == ("art", "zoo", "Author of zoo")
    assert second.boxes == {"cat": (0.0, 0.0, 24.0, 24.0)}


def test_another_archive_is_told_from_the_package(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="has no icon sets under package/json/"):
        read_icon_sets(tarball(tmp_path))


@pytest.mark.parametrize(
    ("icon", "shows"),
    [
        ("home", "home"),
        ("home-outline", "home"),
        ("home-filled-rounded", "home"),
        ("home-2", "home"),
        ("home-two-tone", "home"),
        ("outline", "outline"),
        ("bold-arrow", "bold-arrow"),
        ("arrow-left", "arrow-left"),
    ],
)
def test_a_style_is_no_part_of_what_an_icon_shows(icon: str, shows: str) -> None:
    assert class_of(icon) == shows


@pytest.mark.parametrize(
    ("licence", "usable"),
    [("MIT", True), ("CC-BY-4.0", True), ("CC-BY-NC-4.0", False), ("CC-BY-ND-4.0", False), ("", False)],
)
def test_only_licences_that_let_everybody_use_and_change_are_used(licence: str, usable: bool) -> None:
    assert one_set("some", {}, licence).may_be_used is usable


def test_a_family_is_the_first_word_of_a_sets_name_without_its_version() -> None:
    assert {one_set(prefix, {}).family for prefix in ("fa", "fa-solid", "fa6-brands", "fa7-regular")} == {
        "fa"
    }
    assert one_set("mdi-light", {}).family == "mdi"


def test_classes_are_drawn_by_enough_sets_and_equal_drawings_count_once() -> None:
    cat, dog = square(1, 1, 5), square(2, 2, 6)
    sets = [
        one_set("a", {"cat": cat, "cat-outline": square(3, 3, 3), "cat-bold": square(4, 4, 4), "dog": dog}),
        one_set("b", {"cat": square(5, 5, 5), "dog": dog}),
        one_set("c", {"cat": cat}),
    ]
    drawings = select_drawings(sets, min_sets=2, max_variants=2)
    assert [(drawing.shows, drawing.icon_set.prefix, drawing.name) for drawing in drawings] == [
        ("cat", "a", "cat"),
        ("cat", "a", "cat-bold"),
        ("cat", "b", "cat"),
    ]


def test_held_out_families_are_whole_and_within_the_share() -> None:
    drawings = [
        Drawing("cat", one_set(f"{family}-{part}", {}), "cat")
        for family, size in (("large", 50), ("x", 5), ("y", 5), ("z", 5))
        for part in range(size)
    ]
    held_out = held_out_families(drawings, 0.16, np.random.default_rng(0))
    assert len(held_out) == 2
    assert held_out < {"x", "y", "z"}


def test_shards_are_few_and_alike_in_size() -> None:
    dealt = shards(10, 4, np.random.default_rng(0))
    assert sorted(np.bincount(dealt).tolist()) == [3, 3, 4]
    assert shards(4, 4, np.random.default_rng(0)) == [0, 0, 0, 0]


def test_an_icon_is_drawn_as_ink_at_its_place() -> None:
    icon_set = one_set("a", {"cat": square(0, 12, 12)})
    image = render(Drawing("cat", icon_set, "cat"), 32)
    assert image.dtype == np.uint8
    assert (image[16:, :16] == 255).all()
    assert image.sum() == 255 * 16 * 16


def test_blank_pictures_and_near_copies_are_dropped_and_the_first_stays() -> None:
    first = np.zeros((32, 32), np.uint8)
    first[4:20, 4:20] = 255
    nearly, other = first.copy(), first.T.copy()
    nearly[4, 4:8] = 0
    other[4:20, 4:20] = 0
    other[10:30, 10:30] = 255
    assert without_near_copies(np.stack([np.zeros_like(first), first, nearly, other, first])) == [1, 3]


@pytest.fixture
def population_folder(tmp_path: Path) -> Path:
    """Five sets of ten things; `copy` draws almost what `one` does, `shop` may not be used."""

    def drawn(shift: float) -> dict[str, str]:
        return {f"thing{number}": square(shift, number, 4 + shift) for number in range(10)}

    documents = [
        document("one", drawn(0)),
        document("two", drawn(3)),
        document("three", drawn(6), "CC-BY-4.0"),
        document("four", drawn(9)),
        document("copy", drawn(0.05)),
        document("shop", drawn(12), "CC-BY-NC-4.0"),
    ]
    sets = read_icon_sets(tarball(tmp_path, *documents))
    preset = Preset("icons-tiny", min_sets=3, shard_size=5, test_share=0.4, seed=1)
    write_icons(tmp_path / "population", preset, sets, {"made": "here"})
    return tmp_path / "population"


def test_icons_become_clients_of_designers_and_a_test_of_unseen_ones(population_folder: Path) -> None:
    population = open_population(population_folder)
    assert population.recipe["test_families"] == ["copy", "two"]
    assert {name.split()[0] for name in population.client_names} == {"one", "three", "four"}
    assert population.image_shape == (1, 32, 32)
    assert population.num_classes == 10
    assert max(population.num_examples(client) for client in population.client_ids) <= 5
    # What `copy` draws, a client has: only `two` is left to test with.
    assert (len(population.train), len(population.test)) == (30, 10)


def test_everybody_is_named_whose_drawings_are_in_a_population(population_folder: Path) -> None:
    text = open_population(population_folder).attribution
    assert "Author of three (https://example.org/three) | CC-BY-4.0" in text
    assert "shop" not in text
    assert "nobody" not in attribution([one_set("nobody", {})], {})
