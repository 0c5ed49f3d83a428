"""FedMLH's training step beside FedAvg's, at the sizes of Tables 5 and 7: `python -m benchmarks.label_steps`.

    LF-AmazonTitles-131K        FedAvg has 131,073 outputs, FedMLH 4 tables of 4,000 buckets
    LF-WikiSeeAlsoTitles-320K   FedAvg has 312,330 outputs, FedMLH 4 tables of 8,000 buckets

The steps are those of the experiments `lf-*-fedmlh` and of their baselines, with batches of 32.  On the host both schemes
step in turn, on every runtime and on eager torch, each in a process of its own: ratios are medians over the turns' ratios of
CPU time, on one thread.  On `qemu` ARM64 instructions per step are counted, on `emulator` the guest's kernel tells the peak.

What is exported takes minutes and gigabytes, so `--artifacts` keeps it.  Rows of other sizes and devices stay in the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import fedss
from android_harness.bundles.stock_onnxruntime import stock_onnxruntime_folders
from ondevice.contract.artifact import MEGABYTE
from ondevice.tools.cache_folder import default_cache_folder
from ondevice.tools.step_process import StepJob, StepProcess

BUCKETS = {131_073: 4000, 312_330: 8000}
"""Classes -> buckets of a table."""
TABLES, BATCH = 4, 32
FEDAVG, FEDMLH = "FedAvg", "FedMLH"
RUNTIMES = ("executorch", "onnxruntime")
EAGER = "eager"
DEVICES = ("host", "qemu", "emulator")
WARM_UP = 2


@dataclass(frozen=True)
class LabelStep:
    """One scheme at one size on one runtime; None is what the device does not tell."""

    classes: int
    scheme: str
    device: str
    runtime: str
    cpu_ms: float | None = None
    of_eager: float | None = None
    of_fedavg: float | None = None
    """Of CPU time, or of instructions."""
    peak_mb: float | None = None
    instructions: float | None = None


def spec_of(classes: int, scheme: str) -> fedss.StepSpec:
    sizes = {"vocabulary": 4096, "words": 32, "hidden": 512, "sub_models": TABLES if scheme == FEDMLH else 1}
    outputs = TABLES * BUCKETS[classes] if scheme == FEDMLH else classes
    return fedss.StepSpec(
        "sparse_network", outputs, objective="binary_cross_entropy", architecture_arguments=sizes
    )


def exported(classes: int, folder: Path) -> dict[str, Path]:
    """Scheme -> artifact, made unless it is there."""
    found = {}
    for scheme in (FEDAVG, FEDMLH):
        found[scheme] = folder / f"{scheme.lower()}-{classes}"
        if not found[scheme].exists():
            fedss.export(
                spec_of(classes, scheme),
                out=found[scheme],
                runtimes=RUNTIMES,
                micro_batch=BATCH,
                on_note=print,
            )
    return found


def on_host(classes: int, artifacts: dict[str, Path], turns: int) -> list[LabelStep]:
    stock = stock_onnxruntime_folders(default_cache_folder())
    contenders = [(scheme, runtime) for runtime in (EAGER, *RUNTIMES) for scheme in (FEDAVG, FEDMLH)]
    with ExitStack() as stack:
        processes = {}
        for scheme, runtime in contenders:
            job = StepJob(str(artifacts[scheme]), runtime, batch=BATCH, width=0)
            # What phones have, not the training build that is installed here.
            packages = stock if runtime == "onnxruntime" else ()
            processes[scheme, runtime] = stack.enter_context(StepProcess(job, packages))
        times: dict[tuple[str, str], list[float]] = {contender: [] for contender in contenders}
        for turn in range(WARM_UP + turns):
            first = turn % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                taken = processes[contender].step().cpu_ms
                if turn >= WARM_UP:
                    times[contender].append(taken)
        peaks = {contender: process.peak_bytes() / MEGABYTE for contender, process in processes.items()}
    return [
        LabelStep(
            classes,
            scheme,
            "host",
            runtime,
            cpu_ms=round(statistics.median(times[scheme, runtime]), 1),
            of_eager=_ratio(times[scheme, runtime], times[scheme, EAGER]),
            of_fedavg=_ratio(times[scheme, runtime], times[FEDAVG, runtime]),
            peak_mb=round(peaks[scheme, runtime], 1),
        )
        for scheme, runtime in contenders
    ]


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def on_device(
    classes: int, artifacts: dict[str, Path], device: str, memory_mb: int, runtimes: Sequence[str]
) -> list[LabelStep]:
    found = {
        scheme: {
            row.runtime: row
            for row in fedss.bench(
                artifact, device=device, runtimes=runtimes, batches=[BATCH], warm_up=0, steps=1,
                memory_mb=memory_mb, on_note=print,
            )
        }
        for scheme, artifact in artifacts.items()
    }  # fmt: skip
    rows = []
    for scheme, by_runtime in found.items():
        for runtime, row in by_runtime.items():
            count, of_fedavg = row.instructions_per_step, found[FEDAVG][runtime].instructions_per_step
            ratio = round(count / of_fedavg, 3) if count and of_fedavg else None
            rows.append(
                LabelStep(
                    classes, scheme, device, runtime,
                    of_fedavg=ratio, peak_mb=row.peak_mb, instructions=count,
                )
            )  # fmt: skip
    return rows


def write(file: Path, rows: Iterable[LabelStep]) -> None:
    """Beside the rows of other sizes, devices and runtimes that are in it."""
    before = json.loads(file.read_text()) if file.exists() else []
    kept = {
        (row["classes"], DEVICES.index(row["device"]), row["runtime"], row["scheme"]): row
        for row in (*before, *map(asdict, rows))
    }
    file.write_text(json.dumps([kept[key] for key in sorted(kept)], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, action="append", choices=BUCKETS, help="default: both sizes")
    parser.add_argument("--device", action="append", choices=DEVICES, help="default: all of them")
    parser.add_argument("--runtime", action="append", choices=RUNTIMES, help="on devices; default: both")
    parser.add_argument("--turns", type=int, default=9, help="of each contender on the host")
    parser.add_argument("--memory", type=int, default=4096, metavar="MB", help="RAM of the emulated phone")
    parser.add_argument(
        "--artifacts", type=Path, metavar="FOLDER", help="keep what is exported there, and take what is there"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the rows to this JSON file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for classes in options.classes or BUCKETS:
            artifacts = exported(classes, options.artifacts or Path(scratch))
            for device in options.device or DEVICES:
                rows = (
                    on_host(classes, artifacts, options.turns)
                    if device == "host"
                    else on_device(classes, artifacts, device, options.memory, options.runtime or RUNTIMES)
                )
                for row in rows:
                    print(json.dumps(asdict(row)), flush=True)
                if options.out:
                    write(options.out, rows)


if __name__ == "__main__":
    main()
