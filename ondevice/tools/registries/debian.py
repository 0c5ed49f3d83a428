"""Debian's packages by name and version, and its package index by hash; nothing is installed.

A mirror offers the versions of its releases.  After a point release the pinned one may be gone: the message then has
apt's words, and the pin wants a new version and hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ondevice.tools.registries.apt import run_apt
from ondevice.tools.registries.pinned_file import RegistryError, only_file, run_client

ARCHITECTURE = "amd64"
"""Whose index is asked: every mirror has it, and packages of data are the same for all."""

APT_HELPER = "/usr/lib/apt/apt-helper"
"""apt's downloader by itself, with apt's proxies and mirrors."""


@dataclass(frozen=True)
class DebianPackage:
    name: str
    version: str
    sha256: str

    @property
    def label(self) -> str:
        return f"Debian package {self.name}={self.version}"

    def download(self, folder: Path, cache_dir: Path) -> Path:
        command = ["apt-get", "download", f"{self.name}={self.version}"]
        try:
            run_apt(cache_dir, ARCHITECTURE, command, folder)
        except RegistryError as error:
            raise RegistryError(f"cannot fetch the {self.label}: {error}") from None
        return only_file(folder, "*.deb", self.label)


@dataclass(frozen=True)
class DebianIndex:
    """An index file of a release, as `DebianIndex("bookworm", "main/binary-amd64/Packages.xz", "9e0b...")`.

    Mirrors keep older indices under their hashes, so the same bytes come after the release has moved on.
    """

    suite: str
    path: str
    sha256: str

    @property
    def label(self) -> str:
        return f"Debian index {self.suite}/{self.path}"

    def download(self, folder: Path, cache_dir: Path) -> Path:
        directory, _, name = self.path.rpartition("/")
        try:
            targets = run_apt(cache_dir, ARCHITECTURE, ["apt-get", "indextargets", "--format", "$(URI)"])
            marker = f"/dists/{self.suite}/"
            mirrors = [line.partition(marker)[0] for line in targets.split() if marker in line]
            if not mirrors:
                raise RegistryError(f"this machine's apt has no source of the release {self.suite}; add one")
            address = f"{mirrors[0]}{marker}{directory}/by-hash/SHA256/{self.sha256}"
            # Compared by `fetch` like all other files, so that all say the same of a wrong one.
            run_apt(cache_dir, ARCHITECTURE, [APT_HELPER, "download-file", address, str(folder / name)])
        except RegistryError as error:
            raise RegistryError(f"cannot fetch the {self.label}: {error}") from None
        return folder / name


def unpack_debian_package(package: Path, folder: Path) -> None:
    """The files of a .deb under `folder`, as they would lie under / if it were installed."""
    run_client(["dpkg-deb", "-x", package, folder], install="it comes with Debian (dpkg): run this there")
