"""The parts of the native client that need no runtime, compiled with the sanitizers for the tests; kept in the cache."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import tempfile
from pathlib import Path

from ondevice.native.build import SOURCE_FOLDER, on_all_cores
from ondevice.native.client.build import (
    CLIENT_FOLDER,
    FLAGS,
    PORTABLE_SOURCES,
    compile_client,
    object_name,
)
from ondevice.tools.cache_lock import cache_lock

CACHE = Path(__file__).parents[3] / "cache"
_FUZZ = SOURCE_FOLDER / "fuzz"
# Not optimised: with it the sanitizers take minutes to compile the JSON header.
_SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def sanitized_program(name: str) -> Path:
    """`probe` or `fuzz_wire`; what they answer is said at the top of their sources."""
    sources = [CLIENT_FOLDER / source for source in PORTABLE_SOURCES]
    digest = hashlib.sha256(repr((FLAGS, _SANITIZED)).encode())
    for path in sorted([*CLIENT_FOLDER.rglob("*.h"), *sources, *_FUZZ.iterdir()]):
        digest.update(path.read_bytes())
    folder = CACHE / "native-tests" / digest.hexdigest()[:16]
    with cache_lock(CACHE, "sanitized-client"):
        if not (folder / name).exists():
            _build(folder, name)
    return folder / name


def _build(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects = _objects(folder, Path(scratch))
        program = Path(scratch) / name
        compile_client(
            "g++",
            [*FLAGS, *_SANITIZED, str(_FUZZ / f"{name}.cpp"), *map(str, objects), "-o", str(program)],
        )
        os.replace(program, folder / name)


def run_probe(*arguments: str | Path, stdin: bytes = b"") -> str:
    """What `probe` says; the sanitizers, or a file that it refuses, fail the test."""
    done = ask_probe(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace")


def ask_probe(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sanitized_program("probe"), *arguments], input=stdin, capture_output=True, check=False
    )


def judged(verb: list[str | Path], candidates: list[bytes]) -> list[str]:
    """What a verb of `probe` says of each message."""
    stdin = b"".join(struct.pack("<I", len(message)) + message for message in candidates)
    return run_probe(*verb, stdin=stdin).splitlines()


def _objects(folder: Path, scratch: Path) -> list[Path]:
    """Shared by the two programs."""
    objects, commands = [], []
    for source in PORTABLE_SOURCES:
        objects.append(folder / object_name(source))
        if not objects[-1].exists():
            unfinished = scratch / objects[-1].name
            commands.append([*FLAGS, *_SANITIZED, "-c", str(CLIENT_FOLDER / source), "-o", str(unfinished)])
    on_all_cores(lambda arguments: compile_client("g++", arguments), commands)
    for command in commands:
        os.replace(command[-1], folder / Path(command[-1]).name)
    return objects
