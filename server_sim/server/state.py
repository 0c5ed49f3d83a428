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
from typing import Any, Self

import numpy as np

from ondevice.contract import safetensors_file
from ondevice.contract.messages.flat_parameters import FlatParameters
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
    dense: FlatParameters
    dense_moments: list[FlatParameters]
    """As many as the optimizer keeps."""
    tables: dict[str, RowTable]

    @staticmethod
    def fresh(
        optimizer: ServerOptimizer,
        dense: Mapping[str, FloatArray],
        tables: Mapping[str, FloatArray],
    ) -> ServerState:
        """The start of Algorithm 1 (line 1), in memory.  The dense arrays are copied, the tables become the state's own."""
        rows = {name: RowTable.fresh(optimizer, weights) for name, weights in tables.items()}
        return ServerState.of_tables(optimizer, dense, rows)

    @classmethod
    def of_tables(
        cls, optimizer: ServerOptimizer, dense: Mapping[str, FloatArray], tables: Mapping[str, RowTable]
    ) -> Self:
        """The same on any stores."""
        parameters = FlatParameters.copied(dense)
        moments = [FlatParameters.filled(fill, parameters.shapes) for fill in optimizer.initial_moments]
        return cls(0, optimizer, parameters, moments, dict(tables))

    @property
    def table_sizes(self) -> dict[str, int]:
        return {name: table.num_rows for name, table in self.tables.items()}

    def expected_update(self) -> Expected:
        """What a client's update must look like."""
        return Expected(
            self.dense.shapes,
            self.table_sizes,
            {name: table.dim for name, table in self.tables.items()},
        )

    def slice_model(
        self, ids: Mapping[str, IntArray], sides: Mapping[str, SideTable] | None = None
    ) -> ModelSlice:
        """(φ, W_S): Algorithm 1, line 7; with the entries of side tables that belong to the rows."""
        rows = {name: self.rows(name, ids[name]) for name in self.tables}
        entries = {name: side.values[ids[side.table]] for name, side in (sides or {}).items()}
        return ModelSlice(self.dense, rows, entries)

    def rows(self, table: str, ids: IntArray) -> Rows:
        """Some rows of a table as they stand in this round."""
        return Rows(ids, self.tables[table].read(ids, self.round_index))

    def apply(self, update: AggregatedUpdate) -> None:
        """θ_t -> θ_{t+1}: Algorithm 1, line 13."""
        mean = FlatParameters.of(update.dense, self.dense.shapes)
        self.optimizer.update(self.dense.flat, [moment.flat for moment in self.dense_moments], mean.flat)
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
            table.adopt(weights[name], self.round_index)

    def begin(self, path: Path) -> None:
        """The start of a run that will be saved under this name."""

    def commit(self, line: Mapping[str, Any]) -> None:
        """A round is done, and this is its line: whoever keeps rounds one by one keeps this one now."""

    def is_due(self, save_every: int) -> bool:
        """Whether it is time to be saved."""
        return self.round_index % save_every == 0

    def last_line(self) -> dict[str, Any] | None:
        """The line of the round before this one, if it is kept with the state."""
        return None

    def close(self) -> None:
        """No more rounds."""

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
            current_at = saved.get(f"table.{name}.current_at", np.zeros(1, np.int64))
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
        for name in self.dense:
            for index, moment in enumerate(self.dense_moments):
                tensors[f"moment{index}.{name}"] = moment[name]
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
        for block in safetensors_file.byte_blocks(tensors[name]):
            digest.update(block)
    return digest.hexdigest()
