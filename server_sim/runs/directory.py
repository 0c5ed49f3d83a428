"""Where a run leaves its traces, and finds them again.

    experiment.json     what was run, resolved and checked
    versions.json       with which versions of what
    metrics.jsonl       one line per round
    tracebacks.log      where the programs of clients raised errors, if they did: once per cause
    tensorboard/        the same numbers as TensorBoard events
    memory/             what clients remember between rounds, where the experiment lets them
    state.safetensors   the server's state at the last save
    tables/             rows and journal of a state whose tables are larger than memory (`server.store = "mapped"`)
    summary.json        written last: the run is complete

A round's line is written before its state is saved.  After a kill the file may therefore be ahead of the state, never
behind; `resume` cuts it back to the state's round.  A journal has its round before the line is written, and the line with
it: what it is ahead is made up for when the run goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from ondevice.contract.files.whole_file import replace_file, sync_folder
from ondevice.contract.link import Trace
from server_sim.engines.client_memories import ClientMemories
from server_sim.experiment import ConfigurationError, Experiment

# What may differ when a run is resumed: it does not change what a round brings.
_FREE_ON_RESUME = {"server.rounds", "server.client_timeout"}


_MADE_BEFORE_THE_RUN = {"artifact"}
"""What may lie in the folder of a run that has not begun."""


class RunDirectory:
    """One run's folder, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state_path = path / "state.safetensors"
        self.tables_path = path / "tables"
        self._metrics_path = path / "metrics.jsonl"
        self.memories = ClientMemories(path / "memory")
        self._tensorboard: SummaryWriter | None = None
        self._lock: int | None = None

    def check_usable(self, resume: bool) -> None:
        """Refuses a folder that is somebody else's, or that holds a run which is not to be resumed.  Changes nothing."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is not a folder; choose another one with --out")
        if self.holds_run():
            if not resume:
                raise ConfigurationError(
                    f"{self.path} holds a run already; go on with it by --resume, or choose another folder with --out"
                )
            return
        others = {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}
        if others - _MADE_BEFORE_THE_RUN:
            raise ConfigurationError(
                f"{self.path} is no run's folder, but it is not empty ({', '.join(sorted(others)[:3])}); "
                "choose another one with --out"
            )

    def claim(self, resume: bool) -> None:
        """Make the folder this process's own until `close`, or refuse it.  The lock goes with a process that is killed."""
        self.check_usable(resume)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigurationError(
                f"another process is at work in {self.path}; wait for it, or choose another folder with --out"
            ) from None
        self.check_usable(resume)  # again, for another process may have begun and ended between the two

    def start(self, experiment: Experiment) -> None:
        """A new run."""
        write_json(self.path / "experiment.json", experiment.model_dump(mode="json"))
        write_json(self.path / "versions.json", _versions())

    def check_same_settings(self, experiment: Experiment) -> None:
        """Refuses a run of another experiment."""
        before = read_json(self.path / "experiment.json")
        now = experiment.model_dump(mode="json")
        differing = _differing_fields(before, now) - _FREE_ON_RESUME
        if differing:
            raise ConfigurationError(
                f"{self.path} was run with other settings ({', '.join(sorted(differing))}); "
                "resume with the same ones, or choose another folder with --out"
            )

    def resume(self, experiment: Experiment, round_index: int) -> None:
        """Go on with a run at `round_index`; refuses one of another experiment."""
        self.check_same_settings(experiment)
        (self.path / "summary.json").unlink(missing_ok=True)  # of fewer rounds, if it was complete before
        write_json(self.path / "experiment.json", experiment.model_dump(mode="json"))
        self.memories.cut_back(round_index)
        if not (self.path / "versions.json").exists():  # killed as it began
            write_json(self.path / "versions.json", _versions())
        kept = [line for line in self.metrics() if line["round"] < round_index]
        replace_file(self._metrics_path, [(json.dumps(line) + "\n").encode() for line in kept])
        self._tensorboard = SummaryWriter(str(self.path / "tensorboard"), purge_step=round_index)

    def holds_run(self) -> bool:
        return (self.path / "experiment.json").exists()

    def is_complete(self, experiment: Experiment) -> bool:
        """Whether it holds the result of this very experiment; refuses one of other settings."""
        summary = self.summary()
        if summary is None:
            return False
        self.check_same_settings(experiment)
        return bool(summary["rounds"] == experiment.server.rounds)

    def summary(self) -> dict[str, Any] | None:
        """The result of a complete run."""
        path = self.path / "summary.json"
        return read_json(path) if path.exists() else None

    def record(self, line: dict[str, Any]) -> None:
        """Append one round's numbers; they are on the disk on return."""
        is_new = not self._metrics_path.exists()
        with self._metrics_path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.path)
        if self._tensorboard is None:
            self._tensorboard = SummaryWriter(str(self.path / "tensorboard"))
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "round":
                self._tensorboard.add_scalar(name, value, line["round"])

    def keep_traces(self, traces: Iterable[Trace]) -> None:
        """Append those whose cause is not in the log yet, whoever of the clients it was."""
        path = self.path / "tracebacks.log"
        for trace in traces:
            heading = f"== {trace.cause}\n"
            if not path.exists() or heading not in path.read_text():
                with path.open("a") as file:
                    file.write(f"{heading}{trace.text}\n\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines; a kill may have cut the last one short."""
        if not self._metrics_path.exists():
            return []
        lines = self._metrics_path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def finish(self, summary: dict[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)
        self.close()

    def close(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all."""
    replace_file(path, [(json.dumps(content, indent=2) + "\n").encode()])


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def _versions() -> dict[str, str]:
    return {
        "fedss-mobile": metadata.version("fedss-mobile"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _differing_fields(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> set[str]:
    differing = set()
    for name in before.keys() | now.keys():
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differing |= _differing_fields(old, new, f"{prefix}{name}.")
        elif old != new:
            differing.add(prefix + name)
    return differing
