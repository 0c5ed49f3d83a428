"""The server's state between two rounds: φ, W, the optimizer's moments and the round.  One file, replaced whole.

Everything random is a function of (seed, round), so nothing else is needed to go on after a kill exactly as if nothing
had happened: the same state bytes follow.  A state that is not whole, not finite or not of this experiment is neither saved
nor loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondevice.contract import safetensors_file
from ondevice.contract.safetensors_file import Array, Bfloat16, SafetensorsError
from ondevice.contract.vocabulary import FloatArray, IntArray, ModelSlice, Rows
from ondevice.contract.wire import Expected
from server_sim.server.aggregation import AggregatedUpdate
from server_sim.server.optimizers import ServerOptimizer
from server_sim.server.row_table import RowTable

FORMAT = "fedss-server-state-3"


class StateError(ValueError):
    """A saved state that cannot be used."""


@dataclass(frozen=True)
class SideTable:
    """What a scheme tells clients of the rows they hold: a number per row of a table."""

    table: str
    values: FloatArray
    """[n]"""


@dataclass
class ServerState:
    """Changed once per round: by `apply`, or by `adopt` where there are no clients.  `slice_model` and `save` only read."""

    round_index: int
    optimizer: ServerOptimizer
    dense: dict[str, FloatArray]
    dense_moments: dict[str, list[FloatArray]]
    tables: dict[str, RowTable]

    @staticmethod
    def fresh(
        optimizer: ServerOptimizer,
        dense: Mapping[str, FloatArray],
        tables: Mapping[str, FloatArray],
        store: str = "memory",
    ) -> ServerState:
        """The start of Algorithm 1 (line 1).  The arrays become the state's own."""
        moments = {
            name: [np.full_like(value, fill) for fill in optimizer.initial_moments]
            for name, value in dense.items()
        }
        rows = {name: RowTable.fresh(optimizer, weights, store) for name, weights in tables.items()}
        return ServerState(0, optimizer, dict(dense), moments, rows)

    @property
    def table_sizes(self) -> dict[str, int]:
        return {name: table.num_rows for name, table in self.tables.items()}

    def expected_update(self) -> Expected:
        """What a client's update must look like."""
        return Expected(
            {name: value.shape for name, value in self.dense.items()},
            self.table_sizes,
            {name: table.dim for name, table in self.tables.items()},
        )

    def slice_model(
        self, ids: Mapping[str, IntArray], sides: Mapping[str, SideTable] | None = None
    ) -> ModelSlice:
        """(φ, W_S): Algorithm 1, line 7; with the entries of side tables that belong to the rows."""
        rows = {
            name: Rows(ids[name], table.read(ids[name], self.round_index))
            for name, table in self.tables.items()
        }
        entries = {name: side.values[ids[side.table]] for name, side in (sides or {}).items()}
        return ModelSlice(self.dense, rows, entries)

    def apply(self, update: AggregatedUpdate) -> None:
        """θ_t -> θ_{t+1}: Algorithm 1, line 13."""
        for name, value in self.dense.items():
            self.optimizer.update(value, self.dense_moments[name], update.dense[name])
        for name, table in self.tables.items():
            table.apply(update.tables[name].ids, update.tables[name].delta, self.round_index)
        self.round_index += 1

    def adopt(self, weights: Mapping[str, FloatArray]) -> None:
        """θ_t -> θ_{t+1} without clients: the weights that a round's worth of centralized training has led to.

        There is no difference for an optimizer to apply, and so none may be waiting in its moments.
        """
        if self.optimizer.initial_moments:
            raise ValueError(
                f"the state keeps moments of {type(self.optimizer).__name__}; centralized training has none"
            )
        for name, value in self.dense.items():
            value[...] = weights[name]
        self.round_index += 1
        for name, table in self.tables.items():
            table.store.scatter(np.arange(table.num_rows), weights[name], [], self.round_index)

    def save(self, path: Path) -> None:
        """Replaces the state saved before, unless this one is spoilt: then that one is kept, and StateError raised."""
        tensors = self._tensors()
        for name, tensor in tensors.items():
            if not np.isfinite(tensor).all():
                raise StateError(
                    f"{name} holds NaN or infinity after round {self.round_index}; {path} is left as it was: "
                    "run it anew in another folder with a lower server.learning_rate or server.max_change"
                )
        safetensors_file.write_file(path, tensors, {"format": FORMAT, "sha256": _digest(tensors)})

    @staticmethod
    def load(path: Path, fresh: ServerState) -> ServerState:
        """The saved state, in place of the arrays of `fresh`, a new one of the same experiment; it must fit exactly."""
        saved = _read_tensors(path)
        wanted = fresh._tensors()
        if set(saved) != set(wanted):
            raise StateError(
                f"{path} has not the tensors of this experiment (missing: {sorted(set(wanted) - set(saved)) or 'none'}; "
                f"unknown: {sorted(set(saved) - set(wanted)) or 'none'}): it is of another optimizer or model"
            )
        for name, tensor in wanted.items():
            if saved[name].shape != tensor.shape or saved[name].dtype != tensor.dtype:
                raise StateError(
                    f"{path}: {name} is {saved[name].dtype}{list(saved[name].shape)}; "
                    f"expected {tensor.dtype}{list(tensor.shape)}: it is of another model or population"
                )
            if not np.isfinite(saved[name]).all():
                raise StateError(
                    f"{path}: {name} holds NaN or infinity; start the run anew in another folder"
                )
        round_index = int(saved["round_index"][0])
        for name in fresh.tables:
            current_at = saved[f"table.{name}.current_at"]
            if round_index < 0 or current_at.min() < 0 or current_at.max() > round_index:
                raise StateError(
                    f"{path} is at round {round_index}, and the rows of {name} at rounds {current_at.min()} to "
                    f"{current_at.max()}: it is damaged"
                )
        fresh.round_index = round_index
        for name, tensor in wanted.items():
            tensor[...] = saved[name]  # round_index is a copy, all others are the state's own
        return fresh

    def _tensors(self) -> dict[str, Array]:
        """Everything there is, by the name under which it is saved."""
        tensors: dict[str, Array] = {"round_index": np.array([self.round_index], np.int64)}
        for table_name, table in self.tables.items():
            tensors |= {f"table.{table_name}.{part}": array for part, array in table.store.arrays().items()}
        for name, value in self.dense.items():
            tensors[f"dense.{name}"] = value
        for name, moments in self.dense_moments.items():
            for index, moment in enumerate(moments):
                tensors[f"moment{index}.{name}"] = moment
        return tensors


def _read_tensors(path: Path) -> dict[str, Array]:
    """All tensors of a saved state, views of the file; the digest was compared."""
    try:
        tensors, metadata = safetensors_file.read_file(path)
    except SafetensorsError as error:
        raise StateError(f"{path} is damaged: {error}") from None
    if metadata.get("format") != FORMAT:
        raise StateError(
            f"{path} has format {metadata.get('format')!r}; expected {FORMAT!r}: start the run anew"
        )
    arrays = {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, Bfloat16)}
    if metadata.get("sha256") != _digest(arrays):
        raise StateError(
            f"{path} is damaged: its content is not what was saved; restore it, or start the run anew"
        )
    return arrays


def _digest(tensors: Mapping[str, Array]) -> str:
    """Of names, shapes and numbers: what a disk or a copy may have changed without a trace in the header."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
