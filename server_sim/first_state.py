"""The server's state at round 0 (Algorithm 1, line 1): an extractor as given, tables of random directions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ondevice.contract.step_signature import StepSignature
from ondevice.contract.vocabulary import FloatArray
from server_sim.experiment import Experiment
from server_sim.server.initial_rows import InitialRows
from server_sim.server.journaled_state import new_state
from server_sim.server.state import ServerState
from server_sim.server.stores.new_table import NewTable


def first_state(
    experiment: Experiment,
    table_sizes: Mapping[str, int],
    signature: StepSignature,
    initial: Mapping[str, FloatArray],
    tables_path: Path,
) -> ServerState:
    """`tables_path` is where tables lie that are larger than memory."""
    optimizer = experiment.server_optimizer()
    tables = {
        table: NewTable(
            table_sizes[table],
            dim,
            initial_rows(experiment, dim, number),
            optimizer.initial_moments,
            tables_path / table,
        )
        for number, (table, dim) in enumerate(signature.table_dims.items())
    }
    dense = {name: initial[name] for name in signature.dense_shapes}
    return new_state(optimizer, dense, tables, experiment.server.store)


def initial_rows(experiment: Experiment, dim: int, number: int = 0) -> InitialRows:
    """Random directions of one length, others in every table; a bias starts at 0."""
    model = experiment.model
    return InitialRows(experiment.seed, number, dim, model.column_norm, model.logits == "dot")
