"""Updates per second of two worker processes against one process: `python -m benchmarks.workers`.

    one process             the FedSS round of `benchmarks.race` (16 clients, sizes of glyphs-2028), clients in turn
    two workers             the same round with `--workers 2`                           at least 1.8 of one process
    two processes apart     two of the first at the same moment, which know nothing of each other

The third is the bound: what two cores give to work that shares nothing, not even a server.  Cores of one machine share
memory and heat, so it is below 2, and it differs from machine to machine and from hour to hour.
So every turn is a turn of all three, one after the other, and ratios are medians over turns, of wall time.

It takes two cores that nobody else uses: a turn of which others took more than a tenth, or the host of a virtual machine, is
taken again.  On a machine that is not idle, `chrt -f 10 python -m benchmarks.workers --hold` gets them: priority keeps
others off the cores that are worked on, and an empty loop off the one that is left over by one process.
The CPU time of an update, in all processes of a contender, is compared as well: it shows how much of a loss is work, and how
much is waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders.problem import FEDSS, Problem, check_same_work
from benchmarks.race import Contender, Entry, Rules, Turn, cpu_seconds

ONE, WORKERS, APART = "one process", "two workers", "two processes apart"
TARGET = 1.8
OTHERS = 0.1
"""Of the cores' time: what others may take of a turn."""
TRIES = 100
"""How many turns may be taken for one that counts."""


def busy_seconds() -> float:
    """CPU time of everything on this machine but this process, and what its host took from it, since it was started."""
    user, nice, system, _, _, interrupts, soft, stolen = Path("/proc/stat").read_text().split()[1:9]
    ticks = sum(map(int, (user, nice, system, interrupts, soft, stolen)))
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


class EmptyLoop:
    """Keeps a core from others without touching memory, within a `with` block."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)[self._process.pid]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def undisturbed(one: Contender, other: Contender | EmptyLoop | None = None) -> Turn:
    """A turn of which nobody else took much, of one or of two at once, told as if they were one; or beside a loop."""
    for _ in range(TRIES):
        busy, start = busy_seconds(), time.monotonic()
        if isinstance(other, EmptyLoop):
            before = other.cpu_seconds()
            with other:
                turn = one.turn()
            own = turn.cpu + other.cpu_seconds() - before
        else:
            turn = one.turn() if other is None else one.turn(other)
            own = turn.cpu
        available = (os.cpu_count() or 1) * (time.monotonic() - start)
        if busy_seconds() - busy - own < OTHERS * available:
            rounds = 2 if isinstance(other, Contender) else 1
            return Turn(turn.cpu / rounds, turn.wall / rounds)
    raise SystemExit(f"others use the cores all the time, {TRIES} turns long: end them, or see --hold")


def race(rules: Rules, loop: EmptyLoop | None) -> list[dict[str, Any]]:
    entries = [Entry(ONE, "ours", sys.executable), Entry(WORKERS, "ours", sys.executable, ("2",))]
    with rules.started([*entries, Entry(APART, "ours", sys.executable)], FEDSS) as contenders:
        check_same_work([rules.outcome(FEDSS, entry) for entry in entries], Problem(FEDSS))
        one, workers, another = contenders
        turns = [
            {ONE: undisturbed(one, loop), WORKERS: undisturbed(workers), APART: undisturbed(one, another)}
            for _ in range(rules.repeats)
        ]
    rows = []
    for first, second in ((WORKERS, ONE), (APART, ONE), (WORKERS, APART)):
        speeds = [turn[second].wall / turn[first].wall for turn in turns]
        lower, speed, upper = np.percentile(speeds, [25, 50, 75]).tolist()
        cpu = float(np.median([turn[first].cpu / turn[second].cpu for turn in turns]))
        figure = f"{first} / {second}"
        rows.append({"figure": figure, "ratio": speed, "middle_half": [lower, upper], "cpu_ratio": cpu})
    rows[0]["at_least"] = TARGET
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--turn-seconds", type=float, default=180.0, help="the most that a turn may take")
    parser.add_argument("--hold", action="store_true", help="an empty loop runs beside one process")
    parser.add_argument("--out", type=Path, help="also write the rows to this JSON file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fedss-workers-") as folder:
        loop = EmptyLoop() if options.hold else None
        try:
            rows = race(Rules({}, Path(folder), options.turns, options.turn_seconds), loop)
        finally:
            if loop is not None:
                loop.end()
    print(f"{'updates per second':<36} {'ratio':>5}   {'middle half':>12}   {'CPU time':>8}")
    for row in rows:
        middle = "{:.2f} to {:.2f}".format(*row["middle_half"])
        print(f"{row['figure']:<36} {row['ratio']:>5.2f}   {middle:>12}   {row['cpu_ratio']:>8.2f}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return int(rows[0]["ratio"] < TARGET)


if __name__ == "__main__":
    sys.exit(main())
