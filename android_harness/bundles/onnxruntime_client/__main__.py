"""The command line of the client for stock ONNX Runtime: the verbs, options, outputs and exit codes of `fedss-client`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from android_harness.bundles.onnxruntime_client.bench import BenchJob, bench, peak_footprint_bytes, say
from android_harness.bundles.onnxruntime_client.replay import Replay, Unanswered
from ondevice.backends import Backend
from ondevice.backends.per_length import open_every_length
from ondevice.client.client import Client
from ondevice.client.device_files import DeviceFileError, read_examples, read_plan, read_seed, write_whole
from ondevice.contract.artifact import Artifact, ArtifactError, open_artifact
from ondevice.contract.choice import UnknownChoice
from ondevice.contract.golden_step import check_golden, worst_of
from ondevice.contract.wire import WireError

FAILED, BAD_FILE, CHECK_FAILED = 1, 3, 5


class CheckFailed(RuntimeError):
    """The golden step was not reproduced."""


def main() -> int:
    options = _parser().parse_args()
    try:
        options.verb(options)
    except (OSError, ArtifactError, DeviceFileError, UnknownChoice, WireError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_FILE
    except CheckFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return CHECK_FAILED
    except ValueError as error:  # examples that the step does not take, training that diverged
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return 0


def converse(options: argparse.Namespace) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    client_id, plan = read_plan(options.plan)
    client = Client(
        client_id,
        read_examples(options.data),
        read_seed(options.seed_file),
        lambda: _open_step(open_artifact(options.artifact), options.threads),
    )
    try:
        update = client.converse(plan, Replay(options.answers).ask)
    except Unanswered as open_question:
        write_whole(options.out, open_question.question)
        say(event="asks")
        return
    write_whole(options.out, update)
    say(
        event="trained",
        wall_ms=1e3 * (time.perf_counter() - wall),
        cpu_ms=1e3 * (time.process_time() - cpu),
        peak_footprint_bytes=peak_footprint_bytes(),
    )


def check(options: argparse.Namespace) -> None:
    artifact = open_artifact(options.artifact)
    step, weights = _open_step(artifact, options.threads), artifact.initial()
    comparison = worst_of([check_golden(step, weights, golden) for golden in artifact.golden_steps()])
    say(
        event="checked",
        runtime="onnxruntime",
        passed=comparison.passed,
        outputs=len(comparison.relative_error),
        missed=len(comparison.beyond),
        worst_tensor=comparison.worst_tensor,
        worst_relative_error=comparison.worst_relative_error,
    )
    if not comparison.passed:
        raise CheckFailed(f"{comparison.explain()}; do not train with this client on this device")


def run_bench(options: argparse.Namespace) -> None:
    artifact = open_artifact(options.artifact)
    micro_batch = options.micro_batch or artifact.micro_batch
    for name, value, most in (
        ("width", options.width, artifact.max_width),
        ("micro-batch", micro_batch, artifact.micro_batch),
    ):
        if value > most:
            options.parser.error(f"--{name} is {value}; the artifact takes at most {most}")
    if options.width < bool(artifact.signature.table_dims):
        options.parser.error(f"--width is {options.width}; expected 1 or more, or 0 where there is no table")
    batch = options.batch or micro_batch
    job = BenchJob(options.width, batch, micro_batch, options.steps, options.warmup, options.threads)
    bench(artifact, job, _open_step)


def _open_step(artifact: Artifact, threads: int) -> Backend:
    return open_every_length(artifact, lambda one: _runtime()(one, threads))


def _runtime() -> Callable[[Artifact, int], Backend]:
    # Imported when it is needed: a client that only asks has no use for the runtime.
    from ondevice.backends.onnxruntime_module import OnnxruntimeBackend

    return OnnxruntimeBackend


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("onnxruntime-client", allow_abbrev=False)
    verbs = parser.add_subparsers(required=True)
    for name, verb in (("converse", converse), ("check", check), ("bench", run_bench)):
        options = verbs.add_parser(name, allow_abbrev=False)
        options.set_defaults(verb=verb, parser=options)
        options.add_argument("--artifact", type=Path, required=True)
        options.add_argument("--threads", type=_positive, default=1)
        if name == "converse":
            for file in ("data", "seed-file", "plan", "answers", "out"):
                options.add_argument(f"--{file}", type=Path, required=True)
        if name == "bench":
            options.add_argument("--width", type=int, required=True)
            options.add_argument("--batch", type=_positive)
            options.add_argument("--micro-batch", type=_positive)
            options.add_argument("--steps", type=_positive, default=10)
            options.add_argument("--warmup", type=int, default=1)
    return parser


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(f"{text}; expected 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
