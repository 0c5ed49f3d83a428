"""Our simulation and our server beside others doing the same work, as ratios in one run: `make race`.

    rounds    16 clients of 130 images, FedSS and FullSoftmax: a bare torch loop, ours, pfl 0.6.0, Flower 1.41.0's simulation
    updates   a server takes in an update of 12 MB: memcpy, ours (decode, check, add), Flower (inflate, aggregate)

Every contender is a process, in an environment of its own where it needs one, and takes its turn when it is told to.
CPU time of it and all processes that it has started, medians over turns taken one after the other; the first two turns of
each are left out.  Before anything is timed, all contenders of a round must have moved the model to the same place.
Two worker processes beside one are `benchmarks.workers`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.contenders.problem import CLIENTS, FEDSS, FULL_SOFTMAX, Problem, check_same_work
from benchmarks.contenders.turns import DONE, MARK, READY
from benchmarks.contenders.update import UPDATES

ROOT = Path(__file__).parents[1]
WARM_UP = 2
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
OURS, BARE, PFL, FLOWER, MEMCPY = "ours", "bare torch loop", "pfl 0.6.0", "Flower 1.41.0", "memcpy"
HEADER = f"{'work':<20} {'contender':<17} {'CPU ms':>8} {'wall ms':>8} {'ratio':>7}"


@dataclass(frozen=True)
class Entry:
    """A contender's name, its module, and where its environment is."""

    name: str
    module: str
    python: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    work: str
    contender: str
    cpu_ms: float
    """Per client update, the median over turns."""
    wall_ms: float
    """Per client update, the best turn."""
    ratio: float
    """To the work's yardstick."""

    def __str__(self) -> str:
        times = f"{self.cpu_ms:>8.1f} {self.wall_ms:>8.1f}"
        return f"{self.work:<20} {self.contender:<17} {times} {self.ratio:>7.2f}"


@dataclass(frozen=True)
class Turn:
    """Seconds that one turn took."""

    cpu: float
    wall: float


class Absent(RuntimeError):
    """A contender that ended or took too long: the race goes on without it."""


class Contender:
    """A process that does one round of work whenever it is told to."""

    def __init__(self, entry: Entry, arguments: Sequence[str], log: Path, turn_seconds: float) -> None:
        self.name = entry.name
        self._log = log
        self._turn_seconds = turn_seconds
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [entry.python, "-m", f"benchmarks.contenders.{entry.module}", *arguments],
                cwd=ROOT,
                env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait_for(self, word: str) -> None:
        """Until it says so; whoever does not in a turn's time is killed."""
        assert self._process.stdout is not None
        timer = threading.Timer(self._turn_seconds, self._kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith(MARK) and line.removeprefix(MARK).strip() == word:
                    return
        finally:
            timer.cancel()
            timer.join()
        late = self._process.wait() == -signal.SIGKILL
        fate = (
            f"was not {word} within {self._turn_seconds:g} seconds (--turn-seconds)"
            if late
            else "ended early"
        )
        raise Absent(f"{self.name} {fate}; the end of what it wrote:\n{self._log.read_text()[-2000:]}")

    def turn(self, *others: Contender) -> Turn:
        """One turn, with all processes that were started for it; at the same time as the others'."""
        together = (self, *others)
        before, start = [cpu_seconds(one._process.pid) for one in together], time.monotonic()
        for one in together:
            assert one._process.stdin is not None
            one._process.stdin.write("go\n")
            one._process.stdin.flush()
        for one in together:
            one.wait_for(DONE)
        wall, after = time.monotonic() - start, [cpu_seconds(one._process.pid) for one in together]
        spent = [
            seconds - own_before.get(process, 0.0)
            for own_before, own_after in zip(before, after, strict=True)
            for process, seconds in own_after.items()
        ]
        return Turn(sum(spent), wall)

    def end(self) -> None:
        """Told to, and killed after a while: a framework may take its time to clear up."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()

    def _kill(self) -> None:
        for process in cpu_seconds(self._process.pid):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)


def cpu_seconds(process_id: int) -> dict[int, float]:
    """CPU time so far of a process and all that descend from it, by process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses may hold anything; what follows is state, parent, ...
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found, waiting = {}, [process_id]
    while waiting:
        current = waiting.pop()
        waiting += children.get(current, [])
        with suppress(OSError):  # it may just have ended
            # The kernel's number for the CPU clock of another process.
            found[current] = time.clock_gettime((~current << 3) | 2)
    return found


@dataclass(frozen=True)
class Rules:
    """What holds for every leg of the race."""

    environments: Mapping[str, str]
    """Framework -> its Python."""
    folder: Path
    repeats: int
    turn_seconds: float

    @contextmanager
    def started(self, entries: Sequence[Entry], scheme: str = "") -> Iterator[list[Contender]]:
        """All that got ready and have warmed up."""
        with ExitStack() as stack:
            contenders = []
            for entry in entries:
                arguments = [scheme, str(self.outcome(scheme, entry)), *entry.options] if scheme else []
                log = self.outcome(scheme, entry).with_suffix(".log")
                contender = Contender(entry, arguments, log, self.turn_seconds)
                stack.callback(contender.end)
                try:
                    contender.wait_for(READY)
                    for _ in range(WARM_UP):
                        contender.turn()
                    contenders.append(contender)
                except Absent as error:
                    print(f"without {error}", flush=True)
            yield contenders

    def outcome(self, scheme: str, entry: Entry) -> Path:
        """Where a contender of a round writes its model."""
        return self.folder / "-".join([scheme, entry.module, *entry.options, "outcome.npz"])

    def turns(self, contenders: Sequence[Contender]) -> dict[str, list[Turn]]:
        """One after the other, over and over; whoever is late is left out."""
        turns: dict[str, list[Turn]] = {contender.name: [] for contender in contenders}
        for _ in range(self.repeats):
            for contender in contenders:
                try:
                    if contender.name in turns:
                        turns[contender.name].append(contender.turn())
                except Absent as error:
                    print(f"without {error}", flush=True)
                    del turns[contender.name]
        return turns


def cpu_ratios(work: str, turns: Mapping[str, Sequence[Turn]], updates: int, yardstick: str) -> list[Result]:
    """CPU time to the yardstick's, the median over turns."""
    base = [turn.cpu for turn in turns[yardstick]]
    return [
        _result(work, name, own, updates, float(np.median(np.divide([turn.cpu for turn in own], base))))
        for name, own in turns.items()
    ]


def _result(work: str, name: str, turns: Sequence[Turn], updates: int, ratio: float) -> Result:
    cpu, wall = float(np.median([turn.cpu for turn in turns])), min(turn.wall for turn in turns)
    return Result(work, name, 1e3 * cpu / updates, 1e3 * wall / updates, ratio)


def rounds(rules: Rules, scheme: str) -> list[Result]:
    entries = [
        Entry(BARE, "bare_loop", sys.executable),
        Entry(OURS, "ours", sys.executable),
        Entry(PFL, "pfl_simulation", rules.environments["pfl"]),
        Entry(FLOWER, "flower_simulation", rules.environments["flower"]),
    ]
    with rules.started(entries, scheme) as contenders:
        names = {contender.name for contender in contenders}
        outcomes = [rules.outcome(scheme, entry) for entry in entries if entry.name in names]
        check_same_work(outcomes, Problem(scheme))
        return cpu_ratios(f"round, {scheme}", rules.turns(contenders), CLIENTS, BARE)


def updates(rules: Rules) -> list[Result]:
    entries = [
        Entry(MEMCPY, "update_memcpy", sys.executable),
        Entry(OURS, "update_ours", sys.executable),
        Entry(FLOWER, "update_flower", rules.environments["flower"]),
    ]
    with rules.started(entries) as contenders:
        return cpu_ratios("update of 12 MB", rules.turns(contenders), UPDATES, MEMCPY)


LEGS: dict[str, Callable[[Rules], list[Result]]] = {
    "fedss": lambda rules: rounds(rules, FEDSS),
    "full-softmax": lambda rules: rounds(rules, FULL_SOFTMAX),
    "updates": updates,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flower", required=True, help="the Python of an environment with Flower")
    parser.add_argument("--pfl", required=True, help="the Python of an environment with pfl")
    parser.add_argument(
        "--legs", nargs="+", choices=LEGS, default=list(LEGS), help="all unless said otherwise"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--turn-seconds", type=float, default=180.0, help="the most that a turn may take")
    parser.add_argument("--out", type=Path, help="also write the rows to this JSON file")
    options = parser.parse_args(arguments)
    environments = {"flower": os.path.abspath(options.flower), "pfl": os.path.abspath(options.pfl)}
    results: list[Result] = []
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory(prefix="fedss-race-") as name:
        rules = Rules(environments, Path(name), options.repeats, options.turn_seconds)
        for leg in options.legs:
            found = LEGS[leg](rules)
            print(*found, sep="\n", flush=True)
            results += found
    if options.out:
        options.out.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
