"""Data on other machines: known by hash, given, rendered or fetched; anything else is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.data.tiny_population import make_tiny_population

from server_sim.data.population import open_population
from server_sim.engines.travelling_folder import TravellingFolder, WrongFolder


@pytest.fixture
def folder(tmp_path: Path) -> TravellingFolder:
    return TravellingFolder.of(make_tiny_population(tmp_path / "server" / "tiny").directory)


def elsewhere(folder: TravellingFolder, tmp_path: Path) -> TravellingFolder:
    """As it looks on a machine that has nothing under the server's path."""
    sent: TravellingFolder = pickle.loads(pickle.dumps(folder))
    return replace(sent, path=tmp_path / "not here" / folder.path.name)


def test_a_folder_that_is_given_is_used_where_it_is(folder: TravellingFolder, tmp_path: Path) -> None:
    assert folder.find(tmp_path / "cache") == folder.path
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_is_not_there_is_fetched_once_and_kept(
    folder: TravellingFolder, tmp_path: Path
) -> None:
    there, cache = elsewhere(folder, tmp_path), tmp_path / "cache"
    assert there.find(cache) is None
    for _ in range(2):
        there.keep(cache, dict(folder.files()))
    place = there.find(cache)
    assert place is not None
    assert place.parent == cache
    server, fetched = open_population(folder.path), open_population(place)
    assert fetched.train.labels.tolist() == server.train.labels.tolist()
    assert fetched.private_seed(1) == server.private_seed(1)


def test_a_folder_of_other_content_is_refused_wherever_it_comes_from(
    folder: TravellingFolder, tmp_path: Path
) -> None:
    manifest = folder.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(
        WrongFolder, match=r"is not the folder that the server has: its manifest\.json has sha256"
    ):
        folder.find(tmp_path / "cache")
    there = elsewhere(folder, tmp_path)
    with pytest.raises(WrongFolder, match="copy the server's folder there"):
        there.keep(tmp_path / "cache", dict(folder.files()))
    assert there.find(tmp_path / "cache") is None
    assert not any((tmp_path / "cache").glob(".tiny*")), "nothing is left of what was refused"


def test_what_can_be_rendered_is_rendered_and_fetched_only_if_it_came_out_differently(
    folder: TravellingFolder, tmp_path: Path
) -> None:
    def render(cache: Path) -> Path:
        target = cache / "rendered"
        return target if target.exists() else make_tiny_population(target).directory

    there = replace(elsewhere(folder, tmp_path), render=render)
    assert there.find(tmp_path / "cache") == tmp_path / "cache" / "rendered"
    assert replace(there, sha256="0" * 64).find(tmp_path / "cache") is None
