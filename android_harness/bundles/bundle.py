"""Bundles: a client with everything it needs in one folder, down to its own loader and C library.

Nothing is installed on the device: the folder is pushed and its program started through the loader that it carries, so the
same folder runs on any Linux kernel that shows its /proc: a phone, a board, an otherwise empty root.
Two clients, with the same verbs:

    executorch     fedss-client (`ondevice/native/client`), the kernels and the ExecuTorch runtime of the wheel
    onnxruntime    a Python with numpy, the *stock* onnxruntime wheel and the client of `onnxruntime_client/`

Our part is compiled here, the rest comes from wheels and Debian packages by name.  A bundle is kept in the cache under a
hash of what it was made from, appears there whole or not at all, and lists the hash of every file in bundle.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args

from android_harness.bundles.debian_packages import unpack_package
from android_harness.bundles.imported_modules import imported_modules
from android_harness.bundles.wheels import PYTHON, unpack_wheel
from ondevice.native import build as kernels
from ondevice.native.client import build as client
from ondevice.tools.cache_lock import cache_lock

Architecture = Literal["aarch64", "x86_64"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
BundleRuntime = Literal["executorch", "onnxruntime"]
BUNDLE_RUNTIMES: tuple[BundleRuntime, ...] = get_args(BundleRuntime)

FORMAT = "fedss-bundle"
VERSION = 1
DESCRIPTION = "bundle.json"
REPOSITORY = Path(__file__).parents[2]

ONNXRUNTIME_WHEELS = ("onnxruntime==1.31.1", "numpy==2.4.6")
SYSTEM_LIBRARIES = {
    "libc6": ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
    "libstdc++6": ("libstdc++.so.6",),
    "libgcc-s1": ("libgcc_s.so.1",),
}
"""By Debian package: what C++ programs need."""
PYTHON_LIBRARIES = {"zlib1g": ("libz.so.1",), "libexpat1": ("libexpat.so.1",), "libffi8": ("libffi.so.8",)}
PYTHON_PACKAGES = (
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
)  # the standard library, in two parts
PYTHON_CLIENT = "android_harness.bundles.onnxruntime_client"
# Packages of the standard library that are large and that no client imports.
_LEFT_OUT = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo")


class BundleError(ValueError):
    """A bundle is missing, damaged, or of another version."""


@dataclass(frozen=True)
class _Platform:
    """What Debian calls an architecture, and its loader."""

    debian: str
    triplet: str
    loader: str


_PLATFORMS: dict[Architecture, _Platform] = {
    "aarch64": _Platform("arm64", "aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
    "x86_64": _Platform("amd64", "x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
}


@dataclass(frozen=True)
class Bundle:
    """A folder to push."""

    folder: Path
    architecture: str
    """As `uname -m` says it on the device."""
    runtime: str
    program: tuple[str, ...]
    """The program and its first arguments; files in it are relative to the folder."""
    sources: dict[str, str]
    """SHA-256 of every wheel and Debian package in it."""
    files: dict[str, str]
    """SHA-256 of every file."""

    @property
    def sha256(self) -> str:
        """Of bundle.json, which has the hash of everything else."""
        return hashlib.sha256((self.folder / DESCRIPTION).read_bytes()).hexdigest()

    def command(self, remote: str) -> list[str]:
        """What starts the client on a device that has the bundle at `remote`; the verb and its options follow."""
        loader = _PLATFORMS[_known(self.architecture)].loader
        files = [f"{remote}/{word}" if word in self.files or word == "app" else word for word in self.program]
        return [f"{remote}/{loader}", "--library-path", f"{remote}/lib", *files]


def build_bundle(cache_dir: Path, architecture: Architecture, runtime: BundleRuntime) -> Bundle:
    """From the cache, or made now."""
    sources = _Sources(cache_dir, architecture)
    packages = SYSTEM_LIBRARIES if runtime == "executorch" else SYSTEM_LIBRARIES | PYTHON_LIBRARIES
    libraries = [sources.library(package, name) for package, names in packages.items() for name in names]
    loader = sources.library("libc6", _PLATFORMS[architecture].loader)
    if runtime == "executorch":
        executorch = sources.wheel(f"executorch=={version('executorch')}") / "executorch"
        made_from = sorted(
            path
            for folder in (*kernels.SOURCE_FOLDERS, client.CLIENT_FOLDER)
            for path in folder.rglob("*")
            if path.suffix in (".cpp", ".h", ".py")
        )
    else:
        made_from = client_modules()
        packages_python = [sources.package(name) for name in (*PYTHON_PACKAGES, f"python{PYTHON}-minimal")]
        wheels = [sources.wheel(requirement) for requirement in ONNXRUNTIME_WHEELS]
    made_from.append(Path(__file__))
    key = _fingerprint(sources.hashes, made_from)
    folder = cache_dir / "bundles" / f"{runtime}-{architecture}-{key}"
    with cache_lock(cache_dir, f"bundle-{runtime}-{architecture}"):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
                making = Path(scratch) / "bundle"
                (making / "lib").mkdir(parents=True)
                shutil.copy2(loader.resolve(), making / loader.name)
                for library in libraries:
                    shutil.copy2(library.resolve(), making / "lib" / library.name)
                if runtime == "executorch":
                    program = _add_native_client(making, Path(scratch), architecture, executorch)
                else:
                    program = _add_python_client(making, packages_python, wheels)
                _describe(making, architecture, runtime, program, sources.hashes)
                os.replace(making, folder)
    return open_bundle(folder)


def open_bundle(folder: Path) -> Bundle:
    """A bundle whose files are what bundle.json says."""
    try:
        document = json.loads((folder / DESCRIPTION).read_bytes())
        if (document.pop("format"), document.pop("version")) != (FORMAT, VERSION):
            raise BundleError(
                f"{folder} is not a {FORMAT} of version {VERSION}; make one with `fedss bundle`"
            )
        bundle = Bundle(folder, **{**document, "program": tuple(document["program"])})
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise BundleError(f"{folder} is not a bundle ({error}); make one with `fedss bundle`") from error
    if (found := _hashes(folder)) != bundle.files:
        changed = sorted(
            name for name in {*found, *bundle.files} if found.get(name) != bundle.files.get(name)
        )
        raise BundleError(
            f"{folder}: {', '.join(changed[:3])} changed since it was made; delete the folder and make it again"
        )
    return bundle


def copy_bundle(bundle: Bundle, target: Path) -> Bundle:
    """The same folder somewhere else, whole or not at all; what was there must be a bundle too, or nothing."""
    if target.exists() and not (target / DESCRIPTION).is_file():
        raise BundleError(
            f"{target} exists and is not a bundle; name a folder that may be made, or delete it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copying-") as scratch:
        copy = Path(scratch) / "bundle"
        shutil.copytree(bundle.folder, copy, symlinks=True)
        if target.exists():
            target.rename(Path(scratch) / "old")
        copy.rename(target)
    return open_bundle(target)


class _Sources:
    """Where the parts come from, with their hashes."""

    def __init__(self, cache_dir: Path, architecture: Architecture) -> None:
        self._cache_dir = cache_dir
        self._architecture = architecture
        self.hashes: dict[str, str] = {}

    def package(self, name: str) -> Path:
        unpacked = unpack_package(self._cache_dir, name, _PLATFORMS[self._architecture].debian)
        self.hashes[unpacked.file_name] = unpacked.sha256
        return unpacked.root

    def library(self, package: str, name: str) -> Path:
        triplet = _PLATFORMS[self._architecture].triplet
        root = self.package(package)
        for folder in (root / "lib" / triplet, root / "usr/lib" / triplet):
            if (folder / name).exists():
                return folder / name
        raise BundleError(f"Debian package {package} has no {name}; expected it in lib/{triplet}")

    def wheel(self, requirement: str) -> Path:
        unpacked = unpack_wheel(self._cache_dir, requirement, self._architecture)
        self.hashes[unpacked.file_name] = unpacked.sha256
        return unpacked.root


def _add_native_client(
    making: Path, scratch: Path, architecture: Architecture, executorch: Path
) -> tuple[str, ...]:
    for name in kernels.RUNTIME_LIBRARIES:
        shutil.copy2(executorch / "lib" / f"lib{name}.so", making / "lib")
    here = platform.machine() == architecture
    target = kernels.host_target() if here else kernels.TARGETS[architecture]
    objects = scratch / "objects"
    objects.mkdir()
    shutil.copy2(client.build_client(target, executorch, objects), making / client.PROGRAM)
    return (client.PROGRAM,)


def _add_python_client(making: Path, packages: list[Path], wheels: list[Path]) -> tuple[str, ...]:
    interpreter = f"bin/python{PYTHON}"
    library = f"lib/python{PYTHON}"
    (making / "bin").mkdir()
    shutil.copy2(packages[-1] / "usr" / interpreter, making / interpreter)
    for package in packages[:-1]:
        shutil.copytree(
            package / "usr" / library,
            making / library,
            ignore=shutil.ignore_patterns("__pycache__", *_LEFT_OUT),
            dirs_exist_ok=True,
            ignore_dangling_symlinks=True,
        )
    app = making / "app"
    for wheel in wheels:
        ignore = shutil.ignore_patterns("tests", "*.pyi", "transformers", "quantization", "tools", "f2py")
        shutil.copytree(wheel, app, ignore=ignore, dirs_exist_ok=True)
    for module in client_modules():
        copy = app / module.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(module, copy)
    (app / "__main__.py").write_text(
        f'import runpy\n\nrunpy.run_module("{PYTHON_CLIENT}", run_name="__main__")\n'
    )
    # -I: nothing of the device's own Python, if it has one; -B: the folder may be read-only.
    return (interpreter, "-I", "-B", "app")


def client_modules() -> list[Path]:
    """What the Python client consists of; none of it needs torch."""
    return imported_modules(f"{PYTHON_CLIENT}.__main__", REPOSITORY)


def _describe(
    folder: Path,
    architecture: Architecture,
    runtime: BundleRuntime,
    program: tuple[str, ...],
    sources: dict[str, str],
) -> None:
    bundle = Bundle(folder, architecture, runtime, program, sources, _hashes(folder))
    document = {"format": FORMAT, "version": VERSION, **asdict(bundle)}
    del document["folder"]
    (folder / DESCRIPTION).write_text(json.dumps(document, indent=1) + "\n")


def _hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / DESCRIPTION
    }


def _fingerprint(sources: dict[str, str], files: Iterable[Path]) -> str:
    digest = hashlib.sha256(json.dumps(sources, sort_keys=True).encode())
    for path in files:
        digest.update(path.relative_to(REPOSITORY).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _known(architecture: str) -> Architecture:
    for known in ARCHITECTURES:
        if architecture == known:
            return known
    raise BundleError(f"architecture is {architecture!r}; expected one of {', '.join(ARCHITECTURES)}")
