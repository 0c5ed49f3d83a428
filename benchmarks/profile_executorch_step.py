"""Where an ExecuTorch step spends its processor time, operator by operator.

    python -m benchmarks.profile_executorch_step --micro-batch 4 --image-size 96 [--slowest 20]

Exports the step of a freshly initialised extractor, runs it on random data and prints two tables: the operators by their
share of the time, and the slowest single calls with the sizes they work on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from export.executorch.lowering import lower_step, program_calls
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, Bounds, rows_of
from ondevice.contract.vocabulary import COLUMNS, StepSpec
from ondevice.model.extractors import ARCHITECTURES, build_extractor
from ondevice.model.train_step import TrainStep
from ondevice.native.runtime.program import Program, instruction_set, set_threads

MAX_WIDTH = 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="mobilenet_v3_large", choices=ARCHITECTURES)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--width", type=int, default=170)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--slowest", type=int, default=15)
    options = parser.parse_args()

    spec = StepSpec(options.arch, image_shape=(3, options.image_size, options.image_size))
    step = TrainStep(spec, build_extractor(spec))
    bounds = {EXAMPLES: options.micro_batch, rows_of(COLUMNS): MAX_WIDTH}
    data = lower_step(step, bounds)
    calls = program_calls(data)
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pte"
        path.write_bytes(data)
        microseconds = _measure(Program(path, profiled=True), step, bounds, options.width, options.runs)
    rows = [(microseconds[call.instruction], call.operator, call.sizes) for call in calls]
    total = sum(row[0] for row in rows)

    console = Console()
    shares = defaultdict(list)
    for time, name, _ in rows:
        shares[name].append(time)
    title = (
        f"{options.arch}, micro-batch {options.micro_batch}, {options.image_size} px, width {options.width}"
    )
    table = Table(
        "operator", "calls", "ms", "share", title=f"{title}, {instruction_set()}: {total / 1000:.2f} ms"
    )
    for name, times in sorted(shares.items(), key=lambda share: -sum(share[1])):
        table.add_row(name, str(len(times)), f"{sum(times) / 1000:.3f}", f"{sum(times) / total:.1%}")
    console.print(table)
    table = Table("ms", "operator", "sizes", title="slowest calls")
    for time, name, sizes in sorted(rows, reverse=True)[: options.slowest]:
        table.add_row(f"{time / 1000:.3f}", name, " ".join("x".join(map(str, size)) for size in sizes))
    console.print(table)


def _measure(program: Program, step: TrainStep, bounds: Bounds, width: int, runs: int) -> list[float]:
    """Median microseconds of each instruction."""
    random = np.random.default_rng(0)
    sizes = {**bounds, rows_of(COLUMNS): width}
    weights = [tensor.detach().numpy() for tensor in step.trainable_tensors()]
    inputs = [*weights, *(_made_up(spec, sizes, random) for spec in step.signature.data)]
    room = [np.empty(step.signature[name].sizes(bounds), np.float32) for name in step.signature.trained]
    outputs = [np.empty((), np.float32), *room]
    measured = []
    for _ in range(runs):
        program.run(inputs, outputs)
        measured.append(program.profile())
    return [float(time) / 1000 for time in np.median(measured, axis=0)]


def _made_up(spec: ArraySpec, sizes: Bounds, random: np.random.Generator) -> npt.NDArray[Any]:
    shape = spec.sizes(sizes)
    if spec.role == "example_weight":
        return np.full(shape, np.float32(1 / sizes[EXAMPLES]))
    if spec.positions_in is not None:
        return random.integers(0, sizes[rows_of(spec.positions_in)], shape)
    if spec.dtype == "float32":
        return random.standard_normal(shape, np.float32)
    return random.integers(0, 256, shape).astype(spec.dtype)


if __name__ == "__main__":
    main()
