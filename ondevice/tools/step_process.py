"""A process that does nothing but step: how memory is measured, and time, without one contender disturbing another.

The peak memory of a runtime is that of a process which holds the artifact, one client's examples and nothing else: no torch
unless the runtime itself needs it.  Time is taken inside the process (CPU time of its own clock, wall time beside it), one
step at a time on command, so that a parent can interleave contenders step by step and a busy machine slows all alike.

Parent and child exchange JSON lines: `ready` once the backend is open, then one answer to each command.  A batch larger than
the micro-batch is split exactly as in `ondevice.client.local_training`; the optimizer's update is left out, being the same
for all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ondevice.backends import Backend
from ondevice.backends.opening import WITHOUT_TORCH, open_backend
from ondevice.client.local_training import LocalSgd
from ondevice.contract.artifact import open_artifact
from ondevice.contract.step_signature import EXAMPLES, LOSS, Arrays, ArraySpec, gradient_of, rows_of
from ondevice.contract.vocabulary import LocalTraining, ModelSlice, Rows
from ondevice.contract.wire import Envelope, Expected, slice_from_bytes, slice_to_bytes

CHANNELS_LAST = "eager-channels-last"
"""Eager torch given its images in the other memory format."""


class StepProcessError(RuntimeError):
    """The process ended before it answered: it was killed, or its runtime failed."""


@dataclass(frozen=True)
class StepJob:
    """What to step."""

    artifact: str
    runtime: str
    batch: int
    width: int
    threads: int = 1
    seed: int = 0
    trusted: str = ""
    """The network from elsewhere whose code eager may run."""


@dataclass(frozen=True)
class StepTime:
    """One step."""

    cpu_ms: float
    wall_ms: float
    loss: float


class StepProcess:
    """The parent's side.  A context manager: the process is gone when the block ends."""

    def __init__(self, job: StepJob, import_first: Sequence[Path] = ()) -> None:
        """`import_first`: folders whose packages the process takes before those that are installed here."""
        self.job = job
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `close`
        # One BLAS thread: numpy would otherwise reserve memory for every core of the machine.
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                [*map(str, import_first), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
            ),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": str(job.threads),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ondevice.tools.step_process", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        try:
            self.load_ms: float = self._answer()["load_ms"]
            """From nothing but an artifact on disk to a backend that is ready to step, its golden step not included."""
        except BaseException:
            self.close()
            raise

    def step(self) -> StepTime:
        """One step over the whole batch."""
        return StepTime(**self._ask("step"))

    def swap_ms(self) -> float:
        """From a new slice on disk to arrays that the next step will take."""
        elapsed: float = self._ask("swap")["swap_ms"]
        return elapsed

    def peak_bytes(self) -> int:
        """The most memory that the process has held so far."""
        peak: int = self._ask("peak")["peak_bytes"]
        return peak

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> StepProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> StepProcessError:
        code = self._process.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
        how = f"was killed by signal {-code} (9: too little memory?)" if code < 0 else f"ended with {code}"
        return StepProcessError(
            f"stepping {self.job.runtime} at batch {self.job.batch} and width {self.job.width} {how}: {last}"
        )


class _Stepper:
    """The child's side: one backend, one client's examples and slice."""

    def __init__(self, job: StepJob) -> None:
        started = time.perf_counter()
        artifact = open_artifact(Path(job.artifact))
        self._channels_last = job.runtime == CHANNELS_LAST
        self._backend: Backend = open_backend(
            artifact, "eager" if self._channels_last else job.runtime, job.threads, job.trusted
        )
        self.load_ms = 1e3 * (time.perf_counter() - started)
        random = np.random.default_rng(job.seed)
        signature = self._backend.signature
        self._ids = {table: np.arange(job.width) for table in signature.table_dims}
        sizes = {EXAMPLES: job.batch, **{rows_of(table): job.width for table in signature.table_dims}}
        self._data = {spec.name: _made_up(spec, sizes, random) for spec in signature.data}
        initial = artifact.initial()
        self._weights = {name: initial[name] for name in signature.dense_shapes}
        self._weights |= {table: self._data.pop(table) for table in signature.table_dims}
        if self._channels_last:
            self._data |= {spec.name: _channels_last(self._data[spec.name]) for spec in signature.features}
        self._batch = job.batch
        self._lengths = artifact.manifest.lengths

    def step(self) -> dict[str, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        signature = self._backend.signature
        gradients = LocalSgd(LocalTraining(), [])
        loss = 0.0
        size = self._backend.micro_batch or self._batch
        for start in range(0, self._batch, size):
            result = self._backend.step({**self._weights, **self._piece(start, size)})
            gradients.accumulate([result[gradient_of(name)] for name in signature.trained])
            loss += float(result[LOSS])
        return {
            "cpu_ms": 1e3 * (time.process_time() - cpu),
            "wall_ms": 1e3 * (time.perf_counter() - wall),
            "loss": loss,
        }

    def _piece(self, start: int, size: int) -> Arrays:
        of_examples = {spec.name for spec in self._backend.signature.data if spec.shape[:1] == (EXAMPLES,)}
        return {
            name: values[start : start + size] if name in of_examples else values
            for name, values in self._data.items()
        }

    def swap(self) -> dict[str, float]:
        envelope = Envelope(0, 0)
        signature = self._backend.signature
        expected = Expected(
            signature.dense_shapes,
            {table: len(ids) for table, ids in self._ids.items()},
            signature.table_dims,
        )
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "slice.safetensors"
            tables = {table: Rows(ids, self._weights[table]) for table, ids in self._ids.items()}
            dense = {name: self._weights[name] for name in signature.dense_shapes}
            path.write_bytes(slice_to_bytes(envelope, ModelSlice(dense, tables)))
            started = time.perf_counter()
            received = slice_from_bytes(path.read_bytes(), envelope, self._ids, expected)
            # Copied because local training changes them in place, and the message's arrays are read-only.
            self._weights = {name: np.array(value) for name, value in received.dense.items()}
            self._weights |= {table: np.array(rows.values) for table, rows in received.tables.items()}
            return {"swap_ms": 1e3 * (time.perf_counter() - started)}

    def peak(self) -> dict[str, int]:
        """With the programs of all lengths open: a client comes across texts of every length."""
        if self._lengths is not None:
            signature, arrays = (
                self._backend.signature,
                self._piece(0, self._backend.micro_batch or self._batch),
            )
            for size in self._lengths.shorter:
                short = self._lengths.padded(signature, arrays, size)
                self._backend.step({**self._weights, **short})
        return {"peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """VmHWM of this process: the most memory that it has had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM: peak memory can only be measured on Linux")


def _made_up(spec: ArraySpec, sizes: Mapping[str, int], random: np.random.Generator) -> npt.NDArray[Any]:
    """An input of the step for a whole batch; every example weighs the same."""
    shape = spec.sizes(sizes)
    if spec.role == "table":
        return 0.1 * random.standard_normal(shape, np.float32)
    if spec.role == "side":
        return random.uniform(0, 3, shape).astype(np.float32)
    if spec.role == "noise":
        return random.random(shape, np.float32)
    if spec.role == "example_weight":
        return np.full(shape, np.float32(1 / sizes[EXAMPLES]))
    if spec.positions_in is not None:
        return random.integers(0, sizes[rows_of(spec.positions_in)], shape)
    if spec.dtype == "float32":
        return random.standard_normal(shape, np.float32)
    below = spec.below or (256 if spec.dtype == "uint8" else 2)
    return random.integers(0, below, shape).astype(spec.dtype)


def _channels_last(feature: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same images, laid out [b, H, W, C] in memory; what is no image stays as it is."""
    if feature.ndim != 4:
        return feature
    return np.ascontiguousarray(feature.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def main() -> None:
    """The child process: answers commands until its input ends."""
    job = StepJob(**json.loads(sys.argv[1]))
    if job.runtime in WITHOUT_TORCH:
        # The training build of ONNX Runtime imports torch for its converters wherever it finds it; the stock build does not.
        sys.modules["torch"] = None  # type: ignore[assignment] # Python's way to say that a module cannot be imported
    stepper = _Stepper(job)
    _reply({"load_ms": stepper.load_ms})
    commands: dict[str, Callable[[], dict[str, Any]]] = {
        "step": stepper.step,
        "swap": stepper.swap,
        "peak": stepper.peak,
    }
    for line in sys.stdin:
        _reply(commands[line.strip()]())


def _reply(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
