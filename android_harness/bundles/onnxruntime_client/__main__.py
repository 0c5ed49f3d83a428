"""The command line of the client for stock ONNX Runtime: the verbs, options, outputs and exit codes of `fedss-client`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from android_harness.bundles.onnxruntime_client.bench import BenchJob, bench, peak_footprint_bytes, say
from ondevice.backends.onnxruntime_module import OnnxruntimeBackend
from ondevice.client.client import Client
from ondevice.client.device_files import DeviceFileError, DevicePlan, read_examples, read_plan, read_seed
from ondevice.contract.artifact import ArtifactError, open_artifact
from ondevice.contract.golden_step import check_golden
from ondevice.contract.wire import WireError

USAGE, BAD_FILE, CHECK_FAILED = 2, 3, 5


class CheckFailed(RuntimeError):
    """The golden step was not reproduced, or training diverged."""


def main() -> int:
    options = _parser().parse_args()
    try:
        options.verb(options)
    except (OSError, ArtifactError, DeviceFileError, WireError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_FILE
    except CheckFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return CHECK_FAILED
    return 0


def request(options: argparse.Namespace) -> None:
    client, device_plan = _client(options)
    _write(options.out, client.request(device_plan.plan))


def train(options: argparse.Namespace) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    client, device_plan = _client(options)
    backend = OnnxruntimeBackend(open_artifact(options.artifact), options.threads)
    _write(options.out, client.train(device_plan.plan, options.slice.read_bytes(), backend))
    say(
        event="trained",
        wall_ms=1e3 * (time.perf_counter() - wall),
        cpu_ms=1e3 * (time.process_time() - cpu),
        peak_footprint_bytes=peak_footprint_bytes(),
    )


def check(options: argparse.Namespace) -> None:
    artifact = open_artifact(options.artifact)
    comparison = check_golden(
        OnnxruntimeBackend(artifact, options.threads), artifact.initial(), artifact.golden()
    )
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
    batch = options.batch or micro_batch
    bench(
        artifact, BenchJob(options.width, batch, micro_batch, options.steps, options.warmup, options.threads)
    )


def _client(options: argparse.Namespace) -> tuple[Client, DevicePlan]:
    device_plan = read_plan(options.plan)
    client = Client(
        device_plan.client_id,
        read_examples(options.data),
        read_seed(options.seed_file),
        device_plan.precision,
    )
    return client, device_plan


def _write(path: Path, message: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(message)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("onnxruntime-client", allow_abbrev=False)
    verbs = parser.add_subparsers(required=True)
    for name, verb in (("request", request), ("train", train), ("check", check), ("bench", run_bench)):
        options = verbs.add_parser(name, allow_abbrev=False)
        options.set_defaults(verb=verb, parser=options)
        if name in ("request", "train"):
            for file in ("data", "seed-file", "plan", "out"):
                options.add_argument(f"--{file}", type=Path, required=True)
        if name == "train":
            options.add_argument("--slice", type=Path, required=True)
        if name != "request":
            options.add_argument("--artifact", type=Path, required=True)
            options.add_argument("--threads", type=_positive, default=1)
        if name == "bench":
            options.add_argument("--width", type=_positive, required=True)
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
