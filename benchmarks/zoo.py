"""Every network of the survey as a training step for phones: proven against float64, its time and memory beside eager's.

    python -m benchmarks.zoo [--others] [--only 'timm:resnet*'] [--runtime executorch] [--out results/zoo.jsonl]

A row per network and runtime (`benchmarks.networks.surveyed` lists them); rows that `--out` has already are not made again,
so a run that is stopped goes on.  `--others` are networks that the survey did not have.  The whole takes hours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.networks.examine import PROGRAM, ZooRow, without_figures
from benchmarks.networks.surveyed import OTHERS, SURVEYED, Network
from benchmarks.networks.table import reasons, rows_of, summary

HERE = Path(__file__).parents[1]
EXAMINE = ["-m", "benchmarks.networks.examine"]
MOST_SECONDS = 1800


def examined(network: Network, runtimes: list[str]) -> list[ZooRow]:
    """In a process of its own, whatever becomes of it; what several runtimes do not survive together, each does alone."""
    command = [sys.executable, *EXAMINE, network.model, *runtimes]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=MOST_SECONDS)
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        done, last = None, f"not done after {MOST_SECONDS} s"
    if done and not done.returncode:
        return [ZooRow(**json.loads(line)) for line in done.stdout.splitlines()[-len(runtimes) :]]
    if len(runtimes) > 1:
        return [row for runtime in runtimes for row in examined(network, [runtime])]
    return [without_figures(network, runtimes[0], "failed", last)]


def missing(network: Network, runtimes: list[str], found: list[ZooRow]) -> list[str]:
    known = {row.runtime for row in found if row.model == network.model}
    return [runtime for runtime in runtimes if runtime not in known]


def show(rows: list[ZooRow], console: Console) -> None:
    """Per runtime: how many are proven, how fast; and every network that is not, with the reason."""
    for header, lines in (summary(rows), reasons(rows)):
        table = Table(*header)
        for cells in lines:
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="a pattern of model names")
    parser.add_argument("--others", action="store_true", help="networks that are not of the survey")
    parser.add_argument("--runtime", action="append", choices=sorted(PROGRAM), help="both if not given")
    parser.add_argument("--out", type=Path, help="a file where rows accumulate")
    options = parser.parse_args()
    console = Console()
    rows = rows_of(options.out) if options.out else []
    listed = OTHERS if options.others else SURVEYED
    networks = [network for network in listed if fnmatch(network.model, options.only)]
    for network in networks:
        if options.out:
            # Anew each time: another run may write to the same file.
            rows = rows_of(options.out)
        runtimes = missing(network, options.runtime or sorted(PROGRAM), rows)
        if not runtimes:
            continue
        console.print(f"{network.model} on {' and '.join(runtimes)}", markup=False)
        made = examined(network, runtimes)
        rows += made
        if options.out:
            with options.out.open("a") as lines:
                lines.writelines(json.dumps(asdict(row)) + "\n" for row in made)
    show(rows, console)


if __name__ == "__main__":
    main()
