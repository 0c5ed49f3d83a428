"""A folder that clients read, on machines that are not the server's: known by its hash, wherever it lies.

Populations and artifacts are such folders: their `manifest.json` holds the size and hash of every file, and whoever opens
them checks the files against it.  So the hash of the manifest says whether a folder is the server's.

A machine has it in one of three ways: it is given (a copy, or a shared file system, under the server's path), it is rendered
there, or it is fetched from the server, once, and kept in that machine's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from server_sim.engines import OpenClients

MANIFEST = "manifest.json"
PIECE_BYTES = 32 << 20
"""How much of a file travels at a time."""


class WrongFolder(ValueError):
    """A machine has another folder where the server's should be."""


@dataclass(frozen=True)
class TravellingFolder:
    """What the server says of it."""

    path: Path
    """On the server's machine, from the root."""
    sha256: str
    """Of its manifest."""
    render: Callable[[Path], Path] | None = None
    """Makes the folder in a machine's cache, where it can be made from nothing."""

    @classmethod
    def of(cls, path: Path, render: Callable[[Path], Path] | None = None) -> TravellingFolder:
        return cls(path.resolve(), _manifest_hash(path), render)

    def find(self, cache: Path) -> Path | None:
        """The folder on this machine, rendered if need be; None if it has to be fetched.  `WrongFolder` for one that is
        not the server's: to train on something else would be worse than not to train."""
        for place in (self.path, self._kept_in(cache)):
            if place.exists():
                self._check(place)
                return place
        if self.render is not None:
            with _one_at_a_time(cache, self.path.name):
                rendered = self.render(cache)
            if _manifest_hash(rendered) == self.sha256:
                return rendered
        return None

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """On the server: the name of every file, and its content piece by piece."""
        for file in sorted(self.path.rglob("*")):
            if file.is_file():
                yield file.relative_to(self.path).as_posix(), _pieces(file)

    def keep(self, cache: Path, files: Mapping[str, Iterable[bytes]]) -> None:
        """What was fetched, into this machine's cache: the whole folder or nothing."""
        target = self._kept_in(cache)
        with _one_at_a_time(cache, target.name):
            if target.exists():
                return
            unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=cache))
            try:
                for name, pieces in files.items():
                    file = unfinished / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with file.open("wb") as stream:
                        stream.writelines(pieces)
                self._check(unfinished)
                unfinished.chmod(0o755)  # mkdtemp makes folders private
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)

    def _kept_in(self, cache: Path) -> Path:
        return cache / f"{self.path.name}-{self.sha256[:12]}"

    def _check(self, place: Path) -> None:
        found = _manifest_hash(place)
        if found != self.sha256:
            raise WrongFolder(
                f"{place} is not the folder that the server has: its {MANIFEST} has sha256 {found or 'none'}, the server's "
                f"{self.sha256}; copy the server's folder there, or remove it and have it fetched"
            )


@runtime_checkable
class Travelling(Protocol):
    """Clients that can be made on other machines too, once the folders that they read are there."""

    def folders(self) -> Mapping[str, TravellingFolder]: ...

    def at(self, places: Mapping[str, Path]) -> OpenClients:
        """The same clients, with their folders in these places."""
        ...


def _manifest_hash(folder: Path) -> str:
    """Empty where there is no manifest."""
    path = folder / MANIFEST
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece


@contextmanager
def _one_at_a_time(cache: Path, what: str) -> Iterator[None]:
    """Of the processes of a machine.  The lock goes with its holder, so a crash leaves none behind."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
