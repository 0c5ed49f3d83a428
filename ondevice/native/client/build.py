"""Compiles the native client, `fedss-client`, and links it with the kernels and the ExecuTorch runtime of a wheel.

Two groups of sources: those of messages, sampling, batches and files need nothing but a C++ compiler and nlohmann's JSON
header, and are what the tests compile with the sanitizers; the others run the training step.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ondevice.native.build import FLAGS as RUNTIME_FLAGS
from ondevice.native.build import (
    RUNTIME_LIBRARIES,
    SOURCE_FOLDER,
    TARGETS,
    KernelBuildError,
    Target,
    compile_objects,
    on_all_cores,
)

CLIENT_FOLDER = Path(__file__).parent
PROGRAM = "fedss-client"
PORTABLE_SOURCES = (
    "contract/files/whole_file.cpp",
    "contract/files/strict_json.cpp",
    "contract/messages/exact_fields.cpp",
    "contract/choice.cpp",
    "contract/safetensors.cpp",
    "contract/messages/envelope.cpp",
    "contract/messages/checked_tensors.cpp",
    "contract/wire.cpp",
    "contract/messages/lookup.cpp",
    "contract/portable_random.cpp",
    "contract/hashing/simhash.cpp",
    "contract/hashing/label_hashes.cpp",
    "samplers/sampling.cpp",
    "samplers/uniform_negatives.cpp",
    "samplers/positives.cpp",
    "samplers/all_rows.cpp",
    "samplers/word_negatives.cpp",
    "samplers/nearest_rows.cpp",
    "samplers/label_hashes.cpp",
    "samplers/class_outputs.cpp",
    "weightings/uniform.cpp",
    "weightings/virtual_clients.cpp",
    "weightings/importance.cpp",
    "transforms/precision.cpp",
    "transforms/clip.cpp",
    "transforms/int8.cpp",
    "contract/step_signature.cpp",
    "device_files.cpp",
    "step/micro_batch.cpp",
    "noise.cpp",
    "contract/files/sha256.cpp",
    "contract/artifacts/lengths.cpp",
    "contract/artifact.cpp",
)
STEP_SOURCES = (
    "step/exported_program.cpp",
    "step/training_step.cpp",
    "step/per_length_step.cpp",
    "embedding.cpp",
    "questions.cpp",
    "local_training.cpp",
    "client.cpp",
    "program/replay.cpp",
    "step/golden_check.cpp",
    "program/measurement.cpp",
    "program/bench.cpp",
    "program/arguments.cpp",
    "program/main.cpp",
)
RUNTIME_SOURCES = ("step/stock_step.cpp",)
"""Compiled against the runtime's own headers; the others know it through program.h."""
FLAGS = (
    "-std=c++20",
    "-O3",
    "-Wall",
    "-Wextra",
    # Local SGD takes the same roundings as numpy: no fused multiply-add, which ARM compilers would use unasked.
    "-ffp-contract=off",
    f"-I{SOURCE_FOLDER}",
)
JSON_HEADER = Path("/usr/include/nlohmann/json.hpp")


def build_client(target: Target, executorch: Path, folder: Path) -> Path:
    """The program in `folder`, for `target`, against the wheel unpacked at `executorch`."""
    objects = compile_objects(target, executorch, folder)
    include = executorch / "include"
    headers = [f"-isystem{include}", f"-isystem{include / 'executorch/runtime/core/portable_type/c10'}"]
    commands = []
    for name in (*PORTABLE_SOURCES, *STEP_SOURCES, *RUNTIME_SOURCES):
        flags = [*RUNTIME_FLAGS, f"-I{SOURCE_FOLDER}", *headers] if name in RUNTIME_SOURCES else FLAGS
        objects.append(folder / f"client-{object_name(name)}")
        commands.append([*flags, "-c", str(CLIENT_FOLDER / name), "-o", str(objects[-1])])
    on_all_cores(lambda arguments: compile_client(target.compiler, arguments), commands)
    program = folder / PROGRAM
    runtime = executorch / "lib"
    compile_client(
        target.compiler,
        [
            *map(str, objects),
            *("-o", str(program), "-s", f"-L{runtime}", f"-Wl,-rpath-link,{runtime}"),
            # Even where no symbol is used: the runtime's own operators register themselves when their library loads.
            *("-Wl,--no-as-needed", *(f"-l{name}" for name in RUNTIME_LIBRARIES)),
        ],
    )
    return program


def object_name(source: str) -> str:
    """Files of one name may lie in two folders."""
    return f"{source.replace('/', '-')}.o"


def compile_client(compiler: str, arguments: Sequence[str]) -> None:
    """One run of the compiler."""
    if not JSON_HEADER.is_file():
        raise KernelBuildError(f"{JSON_HEADER} is missing; apt-get install nlohmann-json3-dev")
    path = shutil.which(compiler)
    if path is None:
        packages = {target.compiler: target.debian_package for target in TARGETS.values()}
        raise KernelBuildError(
            f"{compiler} is not installed; apt-get install {packages.get(compiler, compiler)}"
        )
    # The header has no architecture, but a cross compiler does not look among the host's.
    headers = ["-idirafter", str(JSON_HEADER.parents[1])]
    done = subprocess.run([path, *headers, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelBuildError(f"{compiler} failed on {arguments[-3:]}:\n{done.stderr[-4000:]}")
