"""The training step of this tree against that of another revision, turn by turn, and both against eager torch.

    python -m benchmarks.step_race --against 4018335 [--size 4x96 --size 32x96 --size 4x224] [--instructions]

The other revision is checked out into a temporary folder, exports its own artifact with its own code and steps in a
process of its own: a format may have changed in between.  Contenders step in turn, so a busy machine slows all alike;
what is printed is the median over turns of the ratio of CPU times (of wall times with more than one thread).
`--instructions` also counts those of a step on ARM64, under qemu.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parents[1]
SIZES = ("4x96", "32x96", "4x224")
WIDTH = 170
_STEP_MODULES = ("ondevice/tools/step_process.py", "ondevice/step_process.py")
"""Where it is, and where it was in version 1."""


@dataclass(frozen=True)
class RaceRow:
    """One size: examples x pixels.  Ratios are this tree's time over the other's."""

    size: str
    threads: int
    against: str
    ms: float
    ratio: float
    eager_ratio: float
    peak_mb: float
    against_peak_mb: float
    instructions: int | None = None
    against_instructions: int | None = None


class Contender:
    """A process of one tree that steps on command; the questions and answers are those of `step_process`."""

    def __init__(self, tree: Path, artifact: Path, runtime: str, batch: int, threads: int) -> None:
        path = next(path for path in _STEP_MODULES if (tree / path).exists())
        module = path.removesuffix(".py").replace("/", ".")
        job = {
            "artifact": str(artifact), "runtime": runtime, "batch": batch, "width": WIDTH, "threads": threads,
        }  # fmt: skip
        self._name = f"{runtime} of {tree}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=_environment(tree) | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"},
        )
        self._answer()

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} ended with {self._process.wait()}; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", required=True, metavar="REVISION", help="of this repository")
    parser.add_argument("--size", action="append", metavar="EXAMPLESxPIXELS", help=f"default: {SIZES}")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--instructions", action="store_true", help="count them under qemu: minutes")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the rows as JSON, beside those of other sizes in it"
    )
    parser.add_argument(
        "--artifacts", type=Path, metavar="FOLDER", help="keep what is exported there, and take what is there"
    )
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / "tree"
        other.mkdir()
        archive = subprocess.run(
            ["git", "archive", options.against], cwd=HERE, capture_output=True, check=True
        )
        subprocess.run(["tar", "x", "-C", str(other)], input=archive.stdout, check=True)
        # Absolute: each tree's processes run in that tree.
        artifacts = (options.artifacts or Path(scratch)).resolve()
        for size in options.size or SIZES:
            rows.append(_race(size, other, artifacts, options))
            _show(rows[-1:])
    if options.out:
        _write(options.out, [asdict(row) for row in rows])


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    """A quiet quarter of an hour is rare: sizes may be raced one by one, each in a run of its own."""

    def contest(row: dict[str, Any]) -> tuple[int, int, int]:
        batch, pixels = row["size"].split("x")
        return int(row["threads"]), int(pixels), int(batch)

    before = json.loads(file.read_text()) if file.exists() else []
    kept = {contest(row): row for row in (*before, *rows)}
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.write_text(json.dumps([kept[key] for key in sorted(kept)], indent=1) + "\n")
    unfinished.replace(file)


def _race(size: str, other: Path, folder: Path, options: argparse.Namespace) -> RaceRow:
    batch, pixels = size.split("x")
    sizes = ["--image-size", pixels, "--micro-batch", batch, "--runtimes", "executorch"]
    artifacts = {HERE: folder / f"{size}-here", other: folder / f"{size}-{options.against}"}
    for tree, artifact in artifacts.items():
        if not artifact.exists():
            _fedss(tree, "export", *sizes, "--out", str(artifact))
    with ExitStack() as stack:
        contenders = [
            Contender(tree, artifacts[tree], runtime, int(batch), options.threads)
            for tree, runtime in ((HERE, "executorch"), (other, "executorch"), (HERE, "eager"))
        ]
        for contender in contenders:
            stack.callback(contender.close)
        clock = "cpu_ms" if options.threads == 1 else "wall_ms"
        turns = []
        for turn in range(options.turns + 2):
            times = {contender: contender.ask("step")[clock] for contender in _by_turns(contenders, turn)}
            turns.append([times[contender] for contender in contenders])
        turns = turns[2:]  # the first ones find cold caches
        peaks = [contender.ask("peak")["peak_bytes"] / 1e6 for contender in contenders]
    counts: list[int | None] = [None, None]
    if options.instructions:
        counts = [_instructions(tree, artifact) for tree, artifact in artifacts.items()]
    return RaceRow(
        size,
        options.threads,
        options.against,
        round(statistics.median(ours for ours, _, _ in turns), 1),
        round(statistics.median(ours / theirs for ours, theirs, _ in turns), 3),
        round(statistics.median(ours / eager for ours, _, eager in turns), 3),
        round(peaks[0], 1),
        round(peaks[1], 1),
        *counts,
    )


def _by_turns(contenders: list[Contender], turn: int) -> list[Contender]:
    """None of them is always the one after eager, which leaves the caches full of its own."""
    first = turn % len(contenders)
    return contenders[first:] + contenders[:first]


def _instructions(tree: Path, artifact: Path) -> int:
    with tempfile.TemporaryDirectory() as out:
        told = _fedss(
            tree, "bench", str(artifact), "--device", "qemu", "--steps", "2", "--out", out, "--json"
        )
    return int(json.loads(told)["rows"][0]["instructions_per_step"])


def _fedss(tree: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", "from fedss.command_line import main; main()", *arguments]
    done = subprocess.run(
        command, cwd=tree, env=_environment(tree), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"fedss {' '.join(arguments)} in {tree} ended with {done.returncode}")
    return done.stdout


def _environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree)}


def _show(rows: list[RaceRow]) -> None:
    table = Table("size", "threads", "ms", "ratio", "to eager", "MB", "theirs", "ARM64 M", "theirs")
    for row in rows:
        counts = ["" if n is None else f"{n / 1e6:.1f}" for n in (row.instructions, row.against_instructions)]
        numbers = (row.ms, row.ratio, row.eager_ratio, row.peak_mb, row.against_peak_mb)
        table.add_row(row.size, str(row.threads), *map(str, numbers), *counts)
    Console().print(table)


if __name__ == "__main__":
    main()
