"""Packages of the npm registry: `npm pack` gives the published tarball as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ondevice.tools.registries.pinned_file import RegistryError, only_file, run_client


@dataclass(frozen=True)
class NpmPackage:
    name: str
    version: str
    sha256: str

    @property
    def label(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def download(self, folder: Path, cache_dir: Path) -> Path:  # noqa: ARG002 - npm needs no state of its own
        # npm's own cache would keep a second copy, and the package's scripts are none of our business.
        options = ["--silent", "--ignore-scripts", "--cache", "npm-cache"]
        command = ["npm", "pack", *options, f"{self.name}@{self.version}"]
        try:
            run_client(command, folder=folder, install="install Node.js (apt-get install npm) and run again")
        except RegistryError as error:
            raise RegistryError(
                f"cannot fetch the {self.label}: {error}; needs the npm registry or a mirror of it (npm config get registry)"
            ) from None
        return only_file(folder, "*.tgz", self.label)
