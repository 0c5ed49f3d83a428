"""Files from the real registries: fetched by their clients, compared with their hashes, kept; and what is said otherwise."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ondevice.tools.cache_folder import default_cache_folder
from ondevice.tools.registries import (
    DebianPackage,
    NpmPackage,
    PypiWheel,
    RegistryError,
    fetch,
    unpack_debian_package,
)

# The smallest packages with nothing special about them.
WHEEL = PypiWheel("six", "1.17.0", "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274")
TARBALL = NpmPackage("is-number", "7.0.0", "7b75c1057198cf97696909a9bee176c9c5e9bcb5b03bf3ecef2f484defadd51e")
DEBIAN = DebianPackage(
    "fonts-lyx", "2.3.7-1", "d4dd64a5f319b303623b8e1d5d813dbf620b77af1b479bae15b30c4b742b20a4"
)
CACHE = default_cache_folder()


@dataclass(frozen=True)
class OnDisk:
    """A registry that is a folder, and counts its visits."""

    file: Path
    sha256: str
    visits: list[Path]
    label: str = "package on disk"

    def download(self, folder: Path, cache_dir: Path) -> Path:  # noqa: ARG002 - as the protocol has it
        self.visits.append(folder)
        return Path(shutil.copy(self.file, folder))


@pytest.fixture
def on_disk(tmp_path: Path) -> OnDisk:
    file = tmp_path / "data.tgz"
    file.write_bytes(b"what was published")
    return OnDisk(file, hashlib.sha256(b"what was published").hexdigest(), [])


def test_a_file_is_fetched_once_and_then_served_from_the_cache(on_disk: OnDisk, tmp_path: Path) -> None:
    first, second = fetch(on_disk, tmp_path / "cache"), fetch(on_disk, tmp_path / "cache")
    assert first == second
    assert first.read_bytes() == b"what was published"
    assert len(on_disk.visits) == 1
    assert not on_disk.visits[0].exists()


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(on_disk: OnDisk, tmp_path: Path) -> None:
    wrong = replace(on_disk, sha256="0" * 64)
    found = on_disk.sha256
    with pytest.raises(RegistryError, match=f"package on disk has the SHA-256 {found}, expected {'0' * 64}"):
        fetch(wrong, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.endswith(".tgz")]


def test_a_cached_copy_that_has_changed_is_refused_with_what_to_do(on_disk: OnDisk, tmp_path: Path) -> None:
    kept = fetch(on_disk, tmp_path / "cache")
    kept.write_bytes(b"what was pub1ished")
    with pytest.raises(RegistryError, match=f"the cached copy has changed; delete {kept} and run again"):
        fetch(on_disk, tmp_path / "cache")


def test_a_wheel_comes_from_pypi(tmp_path: Path) -> None:
    with zipfile.ZipFile(fetch(WHEEL, tmp_path)) as wheel:
        assert "six.py" in wheel.namelist()
    assert [path.suffix for path in (tmp_path / "registries").iterdir()].count(".whl") == 1


def test_a_tarball_comes_from_npm_or_is_said_to_need_it(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        with pytest.raises(RegistryError, match="'npm' is not installed"):
            fetch(TARBALL, tmp_path)
        return
    with tarfile.open(fetch(TARBALL, tmp_path)) as tarball:
        assert "package/package.json" in tarball.getnames()


def test_a_debian_package_comes_from_the_mirror_and_is_unpacked(tmp_path: Path) -> None:
    unpack_debian_package(fetch(DEBIAN, CACHE), tmp_path / "root")
    assert list((tmp_path / "root").rglob("*.ttf"))


def test_a_package_that_pypi_does_not_have_is_reported_in_the_clients_words(tmp_path: Path) -> None:
    with pytest.raises(
        RegistryError, match=r"cannot fetch the PyPI wheel six==0\.0\.77: .*needs PyPI or a mirror"
    ):
        fetch(replace(WHEEL, version="0.0.77", sha256="1" * 64), tmp_path)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (TARBALL, r"npm package is-number@7\.0\.0.*'npm' is not installed.*apt-get install npm"),
        (DEBIAN, "Debian package fonts-lyx=2.3.7-1.*'apt-get' is not installed.*Debian"),
    ],
)
def test_a_missing_client_is_named_with_what_to_do(
    file: NpmPackage | DebianPackage, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RegistryError, match=words):
        fetch(file, tmp_path)


def test_a_client_without_a_registry_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A client that answers as npm does when it is offline.
    client = tmp_path / "npm"
    client.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(RegistryError, match=r"ENOTFOUND; needs the npm registry or a mirror of it"):
        fetch(TARBALL, tmp_path)
