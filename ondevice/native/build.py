"""Compiles the kernel library with plain g++, once for each state of the sources.

The library is kept in the user's cache folder under a name that is a hash of sources, of the list of those that are
compiled, of flags and of the ExecuTorch version: a changed kernel is a new file, and two processes that build at the same
time write the same bytes and rename them into place.  The flags live here alone; whoever links the kernels into a program
of their own (the native client) uses `compile_objects` with the same `Target`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ondevice.tools.cache_folder import default_cache_folder
from ondevice.tools.cache_lock import cache_lock

SOURCE_FOLDER = Path(__file__).parent
SOURCE_FOLDERS = tuple(SOURCE_FOLDER / name for name in ("kernels", "operators", "runtime"))
KERNEL_SOURCES = (
    "kernels/product/product.cpp",
    "kernels/depthwise/depthwise.cpp",
    "kernels/depthwise/narrow.cpp",
    "kernels/depthwise/wide.cpp",
    "kernels/norms/group_moments.cpp",
    "kernels/norms/group_norm_gradient.cpp",
    "kernels/values/planes.cpp",
    "kernels/convolution/patches.cpp",
    "kernels/pooling/max_pool.cpp",
    "kernels/values/pixels.cpp",
    "kernels/norms/frozen_norm.cpp",
    "kernels/convolution/grid_convolution.cpp",
    "kernels/pooling/grid_pool.cpp",
    "kernels/values/rows.cpp",
    "kernels/values/permute.cpp",
    "kernels/product/peak.cpp",
    "kernels/kernel_table.cpp",
)
"""Compiled once per instruction set."""
COMMON_SOURCES = (
    "kernels/dispatch.cpp",
    "operators/product.cpp",
    "operators/convolution.cpp",
    "operators/planes.cpp",
    "operators/frozen_norm.cpp",
    "operators/grid.cpp",
    "operators/rows.cpp",
    "runtime/program.cpp",
    "runtime/peak.cpp",
)
RUNTIME_LIBRARIES = ("executorch", "executorch_kernels_optimized", "executorch_threadpool")
"""Of the wheel, none of which needs torch."""

FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-DNDEBUG",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",  # the wheel's headers lack the generated ones
    "-DET_USE_THREADPOOL",
    "-DET_EVENT_TRACER_ENABLED",  # as the wheel was built; it shapes the runtime's classes
)
KERNEL_FLAGS = (
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",  # lets comparisons become masks
    "-Wno-psabi",  # registers are passed between our own inlined functions only
)


class KernelBuildError(RuntimeError):
    """The kernels could not be compiled: no compiler, or it refused."""


@dataclass(frozen=True)
class Target:
    """What a library is compiled for."""

    compiler: str
    debian_package: str
    instruction_sets: tuple[tuple[str, tuple[str, ...]], ...]
    """Namespace and flags of each build of the kernels; `dispatch.cpp` knows the names."""


TARGETS = {
    "x86_64": Target("g++", "g++", (("baseline", ()), ("avx2", ("-mavx2", "-mfma")))),
    # On ARM64 the baseline has NEON, and tuning for one core was no faster.
    "aarch64": Target("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu", (("baseline", ("-march=armv8-a",)),)),
}


def build_library(cache_folder: Path | None = None) -> Path:
    """The shared library for this machine, compiled now unless the cache has it."""
    target = host_target()
    folder = cache_folder or default_cache_folder()
    library = folder / f"libfedss_kernels-{_fingerprint(target)}.so"
    if not library.exists():
        with cache_lock(folder, "kernels"):
            if not library.exists():
                _link_library(target, library)
    return library


def _link_library(target: Target, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = compile_objects(target, executorch_folder(), Path(scratch))
        unfinished = Path(scratch) / library.name
        runtime_folder = executorch_folder() / "lib"
        run_compiler(
            target,
            ["-shared", *map(str, objects), "-o", str(unfinished)]
            # Even where no symbol is used: the runtime's own operators register themselves when their library loads.
            + [f"-L{runtime_folder}", f"-Wl,-rpath,{runtime_folder}", "-Wl,--no-as-needed"]
            + [f"-l{name}" for name in RUNTIME_LIBRARIES],
        )
        os.replace(unfinished, library)


def compile_objects(target: Target, executorch: Path, folder: Path) -> list[Path]:
    """Object files of the kernels and of their operators, compiled against the wheel unpacked at `executorch`."""
    include = executorch / "include"
    headers = [f"-isystem{include}", f"-isystem{include / 'executorch/runtime/core/portable_type/c10'}"]
    common = [
        [*FLAGS, f"-I{SOURCE_FOLDER}", *headers, *_one_object(name, folder, name)] for name in COMMON_SOURCES
    ]
    return _compiled(target, [*common, *_kernel_commands(target, folder)])


def compile_kernels(target: Target, folder: Path, *extra_flags: str) -> list[Path]:
    """Object files of the kernels and of the choice between them, for programs without a runtime."""
    dispatch = "kernels/dispatch.cpp"
    choice = [*FLAGS, f"-I{SOURCE_FOLDER}", *_one_object(dispatch, folder, dispatch)]
    return _compiled(
        target, [[*command, *extra_flags] for command in (choice, *_kernel_commands(target, folder))]
    )


def _kernel_commands(target: Target, folder: Path) -> list[list[str]]:
    commands = []
    for instruction_set, flags in target.instruction_sets:
        chosen = [*FLAGS, f"-I{SOURCE_FOLDER}", *KERNEL_FLAGS, *flags, f"-DFEDSS_ISA={instruction_set}"]
        for name in KERNEL_SOURCES:
            commands.append([*chosen, *_one_object(name, folder, f"{name}.{instruction_set}")])
    return commands


def _one_object(source: str, folder: Path, name: str) -> list[str]:
    """Kernels and operators of one family are files of the same name in two folders."""
    return ["-c", str(SOURCE_FOLDER / source), "-o", str(folder / f"{name.replace('/', '-')}.o")]


def _compiled(target: Target, commands: list[list[str]]) -> list[Path]:
    on_all_cores(lambda arguments: run_compiler(target, arguments), commands)
    return [Path(command[command.index("-o") + 1]) for command in commands]


def on_all_cores(compile_one: Callable[[list[str]], None], commands: Sequence[list[str]]) -> None:
    """The first error, if there is one, when all have ended."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for compiling in [pool.submit(compile_one, arguments) for arguments in commands]:
            compiling.result()


def host_target() -> Target:
    """The target of the machine that we run on, with its native compiler."""
    machine = platform.machine()
    if machine not in TARGETS:
        raise KernelBuildError(f"this machine is {machine}; the kernels are written for {', '.join(TARGETS)}")
    return Target("g++", "g++", TARGETS[machine].instruction_sets)


def executorch_folder() -> Path:
    """Where the installed ExecuTorch wheel keeps its headers and libraries."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise KernelBuildError(
            "executorch is not installed; the kernels are compiled against it: pip install executorch==1.5.1"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _fingerprint(target: Target) -> str:
    digest = hashlib.sha256()
    sources = (KERNEL_SOURCES, COMMON_SOURCES)
    digest.update(
        repr((target, FLAGS, KERNEL_FLAGS, sources, importlib.metadata.version("executorch"))).encode()
    )
    digest.update(str(executorch_folder()).encode())  # the library finds the runtime there
    for folder in SOURCE_FOLDERS:
        for source in sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cpp")):
            digest.update(f"{folder.name}/{source.relative_to(folder).as_posix()}".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def run_compiler(target: Target, arguments: list[str]) -> None:
    """Calls the compiler; raises with what it says where it refuses."""
    compiler = shutil.which(target.compiler)
    if compiler is None:
        raise KernelBuildError(
            f"{target.compiler} is not installed, and the kernels have to be compiled; "
            f"apt-get install {target.debian_package}"
        )
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelBuildError(f"{target.compiler} failed on {arguments[-3:]}:\n{done.stderr[-4000:]}")
