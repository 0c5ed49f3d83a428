"""Servers that are killed at random moments, and what is found afterwards: part e of `benchmarks.large_table`.

A server in a process of its own opens its files, plays rounds and makes checkpoints until SIGKILL ends it, wherever it is
by then: often in the recovery from the kill before.  What it left is copied, the copy opened and compared, byte for byte,
with a server that played as many rounds and was never disturbed.  No round may be lost that was told to be kept.  The next
server goes on with the files as they were left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondevice.contract.messages.flat_parameters import FlatParameters
from ondevice.contract.safetensors_file import Array
from ondevice.contract.vocabulary import COLUMNS, FloatArray, IntArray
from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate
from server_sim.server.initial_rows import InitialRows
from server_sim.server.journal import Journal
from server_sim.server.journaled_state import JournaledState, new_state
from server_sim.server.optimizers import FedAvgM
from server_sim.server.state import ServerState
from server_sim.server.stores.new_table import NewTable

DIM = 128
_DENSE = {"w": np.zeros(20_000, np.float32)}
_ROUNDS_PER_CHECKPOINT = 4
_NEVER_TOUCHED = 500
"""Rows that no round names, and which are compared as well."""


def fresh_state(folder: Path, num_rows: int, store: str, dense: Mapping[str, FloatArray]) -> ServerState:
    """Round 0, nothing on the disk."""
    optimizer = FedAvgM()
    rows = InitialRows(0, 0, DIM, 0.1, has_bias=False)
    table = NewTable(num_rows, DIM, rows, optimizer.initial_moments, folder / "tables" / COLUMNS)
    return new_state(optimizer, dense, {COLUMNS: table}, store)


@dataclass(frozen=True)
class Size:
    """Of the table, of the part of it that is ever touched and of a round; and the longest that a server lives."""

    num_rows: int
    touched: int
    per_round: int
    seconds: float

    def fresh(self, folder: Path, store: str) -> ServerState:
        state = fresh_state(folder, self.num_rows, store, _DENSE)
        if isinstance(state, JournaledState):
            state.checkpoint_bytes = _ROUNDS_PER_CHECKPOINT * self.per_round * 8 * DIM
        return state

    def opened(self, folder: Path) -> ServerState:
        state = self.fresh(folder, "mapped")
        return type(state).load(folder / "state", state)

    def ids(self) -> IntArray:
        return np.random.default_rng(0).choice(self.num_rows, self.touched + _NEVER_TOUCHED, replace=False)

    def play(self, state: ServerState, ids: IntArray) -> None:
        """A round that is a function of its number."""
        rng = np.random.default_rng(state.round_index)
        dense = FlatParameters.copied({"w": rng.standard_normal(len(_DENSE["w"]), np.float32)})
        own = rng.choice(ids[: self.touched], self.per_round, replace=False)
        rows = AggregatedRows(own, rng.standard_normal((self.per_round, DIM), np.float32))
        state.apply(AggregatedUpdate(dense, {COLUMNS: rows}, 1, 0.0))
        state.commit({"round": state.round_index - 1})

    def content(self, state: ServerState, ids: IntArray) -> list[bytes]:
        rows = state.tables[COLUMNS].store.open(ids)
        dense = [state.dense.flat, *(moment.flat for moment in state.dense_moments)]
        parts: list[Array] = [*dense, rows.records[rows.places], rows.current_at[rows.places]]
        return [part.tobytes() for part in parts]


@dataclass
class Found:
    """After some kills."""

    kills: int = 0
    recovered: int = 0
    """Bit for bit, with every round that was told to be kept."""
    in_recovery: int = 0
    """Before the server had kept a round of its own."""
    in_a_record: int = 0
    """The journal ended with a part of a record."""
    rounds: int = 0


def kill_servers(folder: Path, size: Size, kills: int, seed: int = 0) -> Found:
    """One after the other, all on the same files."""
    found, ids, rng = Found(), size.ids(), np.random.default_rng(seed)
    run, copy, calm = folder / "run", folder / "copy", folder / "calm"
    run.mkdir()
    calm.mkdir()
    size.fresh(run, "mapped").begin(run / "state")
    # Memory has no room for a large table.
    undisturbed = size.fresh(calm, "memory" if size.num_rows <= 1_000_000 else "mapped")
    undisturbed.begin(calm / "state")
    for _ in range(kills):
        told = _killed(run, size, ids, float(rng.uniform(0, size.seconds)))
        subprocess.run(["cp", "-r", "--sparse=auto", str(run), str(copy)], check=True)
        found.in_a_record += _ends_in_a_part(copy / "tables/journal")
        state = size.opened(copy)
        while undisturbed.round_index < state.round_index:
            size.play(undisturbed, ids)
            if undisturbed.is_due(1 << 30):
                undisturbed.save(calm / "state")
        found.kills += 1
        found.in_recovery += told is None
        kept = state.round_index >= max(told or 0, found.rounds)
        same = size.content(state, ids) == size.content(undisturbed, ids)
        found.recovered += kept and same
        found.rounds = state.round_index
        state.close()
        shutil.rmtree(copy)
    undisturbed.close()
    return found


def _ends_in_a_part(path: Path) -> bool:
    journal = Journal(path)
    try:
        deque(journal.replay(), maxlen=0)
        return journal.ends_in_a_part()
    finally:
        journal.close()


def _killed(run: Path, size: Size, ids: IntArray, seconds: float) -> int | None:
    """The rounds that a server had told to be kept when it was killed; None if it had told none."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            state = size.opened(run)
            while True:
                size.play(state, ids)
                os.write(tell, state.round_index.to_bytes(8, "little"))
                if state.is_due(1):
                    state.save(run / "state")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(tell)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(told, "rb") as pipe:
        lines = pipe.read()
    if not os.WIFSIGNALED(status):
        raise RuntimeError(f"the server ended by itself with status {status}, not by the kill")
    return int.from_bytes(lines[-8:], "little") if lines else None
