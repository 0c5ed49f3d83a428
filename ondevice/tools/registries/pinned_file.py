"""One file that a registry offers, known by its hash: fetched once, kept in the cache, compared every time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ondevice.contract.files.whole_file import sync_folder
from ondevice.tools.cache_lock import cache_lock


class RegistryError(RuntimeError):
    """A file could not be fetched, or is not the one that was pinned; the message says what to do."""


class PinnedFile(Protocol):
    """What every registry's kind of file says of itself."""

    @property
    def sha256(self) -> str: ...

    @property
    def label(self) -> str:
        """Registry, name and version: what people call it."""
        ...

    def download(self, folder: Path, cache_dir: Path) -> Path:
        """Ask the registry's client for the file; it lies in `folder` afterwards, unchecked."""
        ...


def fetch(file: PinnedFile, cache_dir: Path) -> Path:
    """The file in the cache, fetched into it if it is not there, with the hash that was pinned."""
    home = Path(cache_dir) / "registries"
    with cache_lock(home, file.sha256[:16]):
        for found in home.glob(f"{file.sha256[:16]}-*"):
            _compare(file, found, f"the cached copy has changed; delete {found} and run again")
            return found
        with tempfile.TemporaryDirectory(dir=home, prefix=".fetching-") as folder:
            fetched = file.download(Path(folder), cache_dir)
            _compare(
                file,
                fetched,
                "the registry offers another file than the one that was pinned, or something between here and the "
                "registry changes files; nothing was kept",
            )
            with fetched.open("rb") as written:
                os.fsync(written.fileno())
            kept = home / f"{file.sha256[:16]}-{fetched.name}"
            fetched.replace(kept)
            sync_folder(home)
            return kept


def run_client(
    command: Sequence[str | Path],
    *,
    install: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a registry's client printed; `install` says how to get the client where it is missing."""
    program = str(command[0])
    if shutil.which(program) is None:
        raise RegistryError(f"the program {program!r} is not installed, and fetches this; {install}")
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = " ".join((done.stderr.strip() or done.stdout.strip())[-1000:].split())
        raise RegistryError(f"`{' '.join(map(str, command))}` ended with {done.returncode}: {words}")
    return done.stdout


def only_file(folder: Path, pattern: str, label: str) -> Path:
    """The one file that a client left."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "nothing"
        raise RegistryError(f"{label}: expected one file {pattern}, the client left {names}")
    return found[0]


def _compare(file: PinnedFile, path: Path, advice: str) -> None:
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        raise RegistryError(f"{file.label} has the SHA-256 {found}, expected {file.sha256}: {advice}")
