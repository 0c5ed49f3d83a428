"""A small server state in files, and rounds that are a function of their number: no clients, no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ondevice.contract.messages.flat_parameters import FlatParameters
from ondevice.contract.safetensors_file import Array
from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate
from server_sim.server.initial_rows import InitialRows
from server_sim.server.journaled_state import new_state
from server_sim.server.optimizers import FedAvgM, ServerOptimizer
from server_sim.server.state import ServerState
from server_sim.server.stores.new_table import NewTable

TABLES = {"columns": (40, 5), "topics": (7, 3)}
DENSE = {"kernel": (3, 4), "bias": (3,)}


def small_state(run: Path, store: str, optimizer: ServerOptimizer | None = None) -> ServerState:
    """At round 0, in the folder of a run."""
    rule = optimizer or FedAvgM()
    tables = {
        name: NewTable(
            rows, dim, InitialRows(7, number, dim, 1.0, False), rule.initial_moments, run / "tables" / name
        )
        for number, (name, (rows, dim)) in enumerate(TABLES.items())
    }
    dense = {name: np.full(shape, 0.5, np.float32) for name, shape in DENSE.items()}
    return new_state(rule, dense, tables, store)


def saved_at(run: Path) -> Path:
    return run / "state.safetensors"


def play(state: ServerState) -> None:
    """One more round, committed."""
    rng = np.random.default_rng(state.round_index)
    tables = {}
    for name, (rows, dim) in TABLES.items():
        ids = rng.permutation(rows)[: rows // 3]
        tables[name] = AggregatedRows(ids, rng.standard_normal((len(ids), dim), np.float32))
    dense = FlatParameters.filled(0, state.dense.shapes)
    dense.flat[...] = rng.standard_normal(dense.flat.shape, np.float32)
    line = {"round": state.round_index, "mean_loss": float(rng.random())}
    state.apply(AggregatedUpdate(dense, tables, 1, line["mean_loss"]))
    state.commit(line)


def reopened(run: Path, optimizer: ServerOptimizer | None = None) -> ServerState:
    state = small_state(run, "mapped", optimizer)
    return type(state).load(saved_at(run), state)


def content(state: ServerState) -> list[bytes]:
    """Everything that a round can change, row by row, whatever store it is in."""
    parts: list[Array] = [state.dense.flat, *(moment.flat for moment in state.dense_moments)]
    for table in state.tables.values():
        rows = table.store.open(np.arange(table.num_rows))
        parts += [rows.records[rows.places], rows.current_at[rows.places]]
    return [array.tobytes() for array in parts]


def contents_by_round(rounds: int, optimizer: ServerOptimizer | None = None) -> list[list[bytes]]:
    """What a state in memory holds at the start of every round."""
    state = small_state(Path(), "memory", optimizer)
    contents = [content(state)]
    for _ in range(rounds):
        play(state)
        contents.append(content(state))
    return contents
