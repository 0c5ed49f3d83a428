"""Debian packages, by name: programs this host must have, and ARM64 files fetched without installing them.

Fetching uses apt with its own state folder (`ondevice.tools.registries.apt`), set to the foreign architecture.  A package
is fetched once; afterwards the cache serves it, offline too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ondevice.tools.cache_lock import cache_lock
from ondevice.tools.registries.apt import run_apt
from ondevice.tools.registries.pinned_file import RegistryError

# Which package has the program: only programs that this project starts.
PACKAGE_OF_PROGRAM = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "adb": "adb",
    "apt-cache": "apt",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "gcc": "gcc",
    "mke2fs": "e2fsprogs",
    "qemu-aarch64": "qemu-user",
    "qemu-system-aarch64": "qemu-system-arm",
    "setpriv": "util-linux",
}


class MissingPackage(RuntimeError):
    """A program is not installed, or a package cannot be fetched; the message has the line that helps."""


@dataclass(frozen=True)
class UnpackedPackage:
    """A package's files, not installed: `root`/usr/lib/... and so on."""

    file_name: str  # name_version_architecture.deb
    sha256: str  # of the .deb
    root: Path


def find_program(program: str) -> str:
    """Full path of `program`, also from the folders that only root has on its path."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        package = PACKAGE_OF_PROGRAM[program]
        raise MissingPackage(f"program {program!r} is not installed; run: apt-get install {package}")
    return found


def missing_programs(*programs: str) -> list[str]:
    """Packages to install for those of `programs` that are not there."""
    missing = []
    for program in programs:
        try:
            find_program(program)
        except MissingPackage:
            missing.append(PACKAGE_OF_PROGRAM[program])
    return missing


def unpack_package(cache_dir: Path, name: str, architecture: str = "arm64") -> UnpackedPackage:
    """The files of Debian package `name`, from the cache or fetched into it.

    A metapackage (only a name that depends on the real one) is followed with `dependency_of`.
    """
    home = cache_dir / "debian" / architecture / name
    with cache_lock(cache_dir, "debian"):
        if not home.is_dir():
            _fetch(cache_dir, home, name, architecture)
    (deb,) = home.glob("*.deb")
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    if digest != (home / "sha256").read_text().strip():
        raise MissingPackage(
            f"{deb} has changed since it was fetched; delete the folder {home} and run again"
        )
    return UnpackedPackage(deb.name, digest, home / "root")


def dependency_of(cache_dir: Path, metapackage: str, prefix: str, architecture: str = "arm64") -> str:
    """The package starting with `prefix` that `metapackage` depends on; remembered in the cache."""
    answer = cache_dir / "debian" / architecture / f"{metapackage}.depends"
    with cache_lock(cache_dir, "debian"):
        if answer.is_file():
            return answer.read_text().strip()
        lines = _apt(cache_dir, architecture, ["apt-cache", "depends", metapackage]).splitlines()
        names = [line.split("Depends:")[1].strip() for line in lines if "Depends:" in line]
        matching = [name for name in names if name.startswith(prefix)]
        if not matching:
            raise MissingPackage(
                f"{metapackage} depends on {names}, expected one that starts with {prefix!r}"
            )
        scratch = answer.with_suffix(".part")
        scratch.write_text(matching[0] + "\n")
        os.replace(scratch, answer)
        return matching[0]


def _fetch(cache_dir: Path, home: Path, name: str, architecture: str) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetching-") as folder:
        fetching = Path(folder) / name
        (fetching / "root").mkdir(parents=True)
        _apt(cache_dir, architecture, ["apt-get", "download", name], cwd=fetching)
        (deb,) = fetching.glob("*.deb")
        subprocess.run([find_program("dpkg-deb"), "-x", deb, fetching / "root"], check=True)
        (fetching / "sha256").write_text(hashlib.sha256(deb.read_bytes()).hexdigest() + "\n")
        os.replace(fetching, home)


def _apt(cache_dir: Path, architecture: str, command: list[str], cwd: Path | None = None) -> str:
    try:
        return run_apt(cache_dir, architecture, command, cwd)
    except RegistryError as error:
        raise MissingPackage(f"cannot fetch Debian packages for {architecture}: {error}") from None
