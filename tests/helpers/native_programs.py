"""The parts of the native client that need no runtime, compiled with the sanitizers for the tests; kept in the cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from ondevice.native.build import SOURCE_FOLDER
from ondevice.native.client.build import CLIENT_FOLDER, FLAGS, PORTABLE_SOURCES, compile_client

CACHE = Path(__file__).parents[2] / "cache"
_FUZZ = SOURCE_FOLDER / "fuzz"
# Not optimised: with it the sanitizers take minutes to compile the JSON header.
_SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def sanitized_program(name: str) -> Path:
    """`probe` or `fuzz_wire`; what they answer is said at the top of their sources."""
    sources = [CLIENT_FOLDER / source for source in PORTABLE_SOURCES]
    digest = hashlib.sha256(repr((FLAGS, _SANITIZED)).encode())
    for path in sorted([*CLIENT_FOLDER.glob("*.h"), *sources, *_FUZZ.iterdir()]):
        digest.update(path.read_bytes())
    folder = CACHE / "native-tests" / digest.hexdigest()[:16]
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            objects = _objects(folder, sources, Path(scratch))
            program = Path(scratch) / name
            compile_client(
                "g++",
                [*FLAGS, *_SANITIZED, str(_FUZZ / f"{name}.cpp"), *map(str, objects), "-o", str(program)],
            )
            os.replace(program, folder / name)
    return folder / name


def _objects(folder: Path, sources: list[Path], scratch: Path) -> list[Path]:
    """Shared by the two programs."""
    objects = []
    for source in sources:
        objects.append(folder / f"{source.name}.o")
        if not objects[-1].exists():
            unfinished = scratch / objects[-1].name
            compile_client("g++", [*FLAGS, *_SANITIZED, "-c", str(source), "-o", str(unfinished)])
            os.replace(unfinished, objects[-1])
    return objects
