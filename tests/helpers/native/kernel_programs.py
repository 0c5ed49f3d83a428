"""`kernel_calls`, which calls kernels for the tests, compiled for a processor and kept in the cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.native.arm_programs import require_programs
from ondevice.native.build import (
    FLAGS,
    KERNEL_FLAGS,
    SOURCE_FOLDER,
    TARGETS,
    Target,
    build_library,
    compile_kernels,
    host_target,
    run_compiler,
)
from ondevice.tools.cache_lock import cache_lock

CACHE = Path(__file__).parents[3] / "cache"
_SOURCE = SOURCE_FOLDER / "fuzz/kernel_calls.cpp"
# Little optimised: the sanitizers' checks are what takes the time to compile.
_SANITIZERS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@dataclass(frozen=True)
class KernelBuild:
    """One way to run the kernels: compiled how, and which of the instruction sets."""

    name: str
    instruction_set: str

    def command(self) -> list[str]:
        """What starts `kernel_calls`."""
        if self.name == "arm64":
            require_programs("aarch64-linux-gnu-g++", "qemu-aarch64")
            program = _program(TARGETS["aarch64"], ("-static",))
            return [_found("qemu-aarch64"), str(program), self.instruction_set]
        sanitizers = _SANITIZERS if self.name == "sanitized" else ()
        return [str(_program(host_target(), sanitizers)), self.instruction_set]


def kernel_builds() -> list[KernelBuild]:
    """Every instruction set of this machine, as shipped and with the sanitizers, and ARM64's, emulated if need be."""
    host = [
        KernelBuild(name, instruction_set)
        for name in ("host", "sanitized")
        for instruction_set, _flags in host_target().instruction_sets
    ]
    return host if platform.machine() == "aarch64" else [*host, KernelBuild("arm64", "baseline")]


def _program(target: Target, extra_flags: Sequence[str]) -> Path:
    """The program for one target: linked with the library as it is shipped, or with objects compiled for it alone."""
    digest = hashlib.sha256(repr((target, FLAGS, KERNEL_FLAGS, extra_flags)).encode())
    for path in [*sorted((SOURCE_FOLDER / "kernels").rglob("*.*")), _SOURCE]:
        digest.update(str(path.relative_to(SOURCE_FOLDER)).encode() + path.read_bytes())
    if not extra_flags:
        digest.update(str(build_library()).encode())
    program = CACHE / "native-tests" / f"kernel_calls-{digest.hexdigest()[:16]}"
    with cache_lock(CACHE, program.name):
        if not program.exists():
            _build(target, extra_flags, program)
    return program


def _build(target: Target, extra_flags: Sequence[str], program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        unfinished = Path(scratch) / program.name
        if extra_flags:
            linked = [str(path) for path in compile_kernels(target, Path(scratch), *extra_flags)]
        else:
            library = build_library()
            linked = [str(library), f"-Wl,-rpath,{library.parent}"]
        options = [*FLAGS, f"-I{SOURCE_FOLDER}", *extra_flags]
        run_compiler(target, [*options, str(_SOURCE), *linked, "-o", str(unfinished)])
        os.replace(unfinished, program)


def _found(program: str) -> str:
    path = shutil.which(program)
    assert path is not None
    return path
