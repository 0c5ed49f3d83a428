"""Random networks on both lowerings: is each right, and if not, is it refused by name?

    python -m benchmarks.fuzz_networks --count 10000 [--first 0] [--onnxruntime] [--executorch] [--out FILE.jsonl]

Every network is run in a process of its own, so that one which dies costs nothing but itself.  The graph that is rewritten
for ExecuTorch runs in float64 with reference kernels (`export/proof/rewrite_check.py`): what is wrong there is wrong, with
no rounding to allow for.  `--onnxruntime` and `--executorch` run the network on these runtimes too and compare with float64,
kinks told apart from errors.  `--out` gets a line of JSON: which networks, on what, how many came out how, and why.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import fx

from benchmarks.random_networks import wide_network
from export.executorch import lowering as executorch_lowering
from export.onnx import lowering as onnx_lowering
from export.proof.golden import YARDSTICKS, draw_features, expected_step, float64_copy
from export.proof.rewrite_check import rewrite_errors
from export.trace import trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.golden_step import GoldenStep, compare
from ondevice.contract.step_signature import EXAMPLES, LOSS, Arrays, Bounds, gradient_of, rows_of
from ondevice.contract.vocabulary import FloatArray
from ondevice.model.train_step import TrainStep
from ondevice.native.runtime.program import Program, set_threads

BATCH, ROWS, MOST_ROWS = 2, 9, 16
MANY_YARDSTICKS = 100
"""Where the usual yardstick is missed: that it is an error, and not a rounding that float32 has too, takes more of them."""
CPU_SECONDS = 120
"""Of one network, after which it counts as a crash."""
Outcome = tuple[str, str]
"""right, refused, wrong or crash; and why."""


def outcome_of(seed: int, runtimes: Sequence[str]) -> Outcome:
    drawn = wide_network(seed)
    try:
        golden = _golden(drawn.step, seed)
        traced = trace_step(drawn.step, BATCH)
        found = {name: RUN_ON[name](drawn.step, traced, golden) for name in runtimes}
        errors = rewrite_errors(drawn.step, golden.inputs, traced)
        if errors:
            return "wrong", f"{drawn.description}: {', '.join(errors)}"
        for name, arrays in found.items():
            comparison = compare(arrays, golden)
            if not comparison.passed:  # or float32 itself is worse than the usual yardstick shows
                comparison = compare(arrays, _golden(drawn.step, seed, MANY_YARDSTICKS))
            if not comparison.passed:
                return "wrong", f"{drawn.description}: {name}: {comparison.explain()}"
    except UnsupportedOperator as error:
        return "refused", f"{drawn.description}: {error}"
    except Exception as error:
        return "crash", f"{drawn.description}: {type(error).__name__}: {error}"
    return "right", ""


def _golden(step: TrainStep, seed: int, yardsticks: int = YARDSTICKS) -> GoldenStep:
    exact = float64_copy(step)
    return expected_step(exact, draw_features(exact, BATCH, seed), ROWS, seed, yardsticks)


def _bounds(step: TrainStep) -> Bounds:
    return {EXAMPLES: BATCH, **{rows_of(table): MOST_ROWS for table in step.signature.table_dims}}


def _weights(step: TrainStep) -> list[FloatArray]:
    return [tensor.detach().numpy() for tensor in step.trainable_tensors()]


def _on_executorch(step: TrainStep, _traced: fx.GraphModule, golden: GoldenStep) -> Arrays:
    signature, most = step.signature, _bounds(step)
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pte"
        path.write_bytes(executorch_lowering.lower_step(step, most).data)
        program = Program(path)
        room = {name: np.empty(signature[name].sizes(most), np.float32) for name in signature.trained}
        loss = np.empty((), np.float32)
        inputs = [np.ascontiguousarray(array) for array in (*_weights(step), *golden.inputs.values())]
        program.run(inputs, [loss, *room.values()])
        program.close()
    rows = {name: len(golden.inputs[name]) for name in signature.table_dims}
    return {LOSS: loss, **{gradient_of(name): array[: rows.get(name)] for name, array in room.items()}}


def _on_onnxruntime(step: TrainStep, traced: fx.GraphModule, golden: GoldenStep) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    program = onnx_lowering.lower_traced(traced, step, _bounds(step))
    session = onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])
    weights = dict(zip(step.trainable, _weights(step), strict=True))
    return dict(zip(step.signature.outputs, session.run(None, {**weights, **golden.inputs}), strict=True))


RUN_ON: dict[str, Callable[[TrainStep, fx.GraphModule, GoldenStep], Arrays]] = {
    "onnxruntime": _on_onnxruntime,
    "executorch": _on_executorch,
}


def in_a_process(seed: int, runtimes: Sequence[str]) -> Outcome:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        gc.disable()  # an eighth of the time, and the process is gone soon
        with os.fdopen(writing, "w") as pipe:
            json.dump(outcome_of(seed, runtimes), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if text:
        kind, why = json.loads(text)
        return kind, why
    died = f"died of {signal.Signals(status & 127).name}" if status & 127 else "ended without a word"
    return "crash", f"{wide_network(seed).description}: {died}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="networks")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    for name in RUN_ON:
        parser.add_argument(f"--{name}", action="store_true", help="lower each and run it there, too")
    parser.add_argument("--out", type=Path, help="a file where the outcomes of runs accumulate")
    given = parser.parse_args()
    runtimes = [name for name in RUN_ON if getattr(given, name)]
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    # What is imported on first use, once for all processes.
    outcome_of(0, runtimes)
    counts: Counter[str] = Counter(right=0, refused=0, wrong=0, crash=0)
    others: list[dict[str, object]] = []
    for seed in range(given.first, given.first + given.count):
        kind, why = in_a_process(seed, runtimes)
        counts[kind] += 1
        if kind != "right":
            print(f"{kind}: {why}", flush=True)
            others.append({"seed": seed, "outcome": kind, "why": why})
    row = {"first": given.first, "count": given.count, "on": ["float64", *runtimes], **counts}
    print(row)
    if given.out:
        with given.out.open("a") as lines:
            lines.write(json.dumps({**row, "others": others}) + "\n")
    raise SystemExit(bool(counts["wrong"] or counts["crash"]))


if __name__ == "__main__":
    main()
