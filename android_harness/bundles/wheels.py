"""Python wheels for another machine than this one, fetched by pip and unpacked without installing them.

pip is told the platform, so that an x86_64 host gets ARM64 files; the index is whatever pip is set up with.  A wheel is
fetched once; afterwards the cache serves it, offline too.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ondevice.tools.cache_lock import cache_lock

PYTHON = "3.11"
"""Whose binary wheels are fetched: the Python that Debian 12 has, which the ONNX Runtime bundle carries."""


class WheelError(RuntimeError):
    """A wheel could not be fetched."""


@dataclass(frozen=True)
class UnpackedWheel:
    """A wheel's files, as they would lie in site-packages."""

    file_name: str
    sha256: str
    root: Path


def unpack_wheel(cache_dir: Path, requirement: str, architecture: str) -> UnpackedWheel:
    """The files of `requirement` (name==version) for a Linux of `architecture`, from the cache or fetched into it."""
    home = cache_dir / "wheels" / architecture / requirement
    with cache_lock(cache_dir, "wheels"):
        if not home.is_dir():
            _fetch(home, requirement, architecture)
    (wheel,) = home.glob("*.whl")
    return UnpackedWheel(wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest(), home / "root")


def _fetch(home: Path, requirement: str, architecture: str) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetching-") as folder:
        fetching = Path(folder) / "wheel"
        options = ["--platform", f"manylinux_2_28_{architecture}", "--python-version", PYTHON]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, *options, "--dest", fetching, requirement], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise WheelError(
                f"pip cannot fetch {requirement} for {architecture}: {done.stderr.strip()[-1000:]}; "
                "needs a package index with that version"
            )
        (wheel,) = fetching.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fetching / "root")
        os.replace(fetching, home)
