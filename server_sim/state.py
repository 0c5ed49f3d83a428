"""The server's state between two rounds: φ, W, the optimizer's moments and the round.  One file, replaced whole.

Everything random is a function of (seed, round), so nothing else is needed to go on after a kill exactly as if nothing
had happened: the same state bytes follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondevice import safetensors_file
from ondevice.safetensors_file import Bfloat16, SafetensorsError, Tensor
from ondevice.vocabulary import Columns, FloatArray, IntArray, ModelSlice
from server_sim.aggregation import AggregatedUpdate
from server_sim.column_table import ColumnTable
from server_sim.server_optimizers import ServerOptimizer

FORMAT = "fedss-server-state-1"


class StateError(ValueError):
    """A saved state that cannot be used."""


@dataclass
class ServerState:
    """Changed only by `apply`, once a round."""

    round_index: int
    extractor: dict[str, FloatArray]
    extractor_moments: dict[str, list[FloatArray]]
    columns: ColumnTable

    @staticmethod
    def fresh(
        optimizer: ServerOptimizer, extractor: dict[str, FloatArray], class_weights: FloatArray
    ) -> ServerState:
        """The start of Algorithm 1 (line 1)."""
        moments = {
            name: [np.full_like(value, fill) for fill in optimizer.initial_moments]
            for name, value in extractor.items()
        }
        return ServerState(0, extractor, moments, ColumnTable.fresh(optimizer, class_weights))

    def slice_model(self, class_ids: IntArray) -> ModelSlice:
        """(φ, W_S): Algorithm 1, line 7."""
        return ModelSlice(self.extractor, Columns(class_ids, self.columns.read(class_ids, self.round_index)))

    def apply(self, update: AggregatedUpdate) -> None:
        """θ_t -> θ_{t+1}: Algorithm 1, line 13."""
        for name, value in self.extractor.items():
            self.columns.optimizer.update(value, self.extractor_moments[name], update.extractor_delta[name])
        self.columns.apply(update.class_ids, update.columns_delta, self.round_index)
        self.round_index += 1

    def save(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {
            "round_index": np.array([self.round_index], np.int64),
            "columns.current_at": self.columns.current_at,
            "columns.weights": self.columns.class_weights,
        }
        for index, moment in enumerate(self.columns.moments):
            tensors[f"columns.moment{index}"] = moment
        for name, value in self.extractor.items():
            tensors[f"extractor.{name}"] = value
        for name, moments in self.extractor_moments.items():
            for index, moment in enumerate(moments):
                tensors[f"moment{index}.{name}"] = moment
        safetensors_file.write_file(path, tensors, {"format": FORMAT})

    @staticmethod
    def load(path: Path, optimizer: ServerOptimizer) -> ServerState:
        tensors = read_state_tensors(path)
        num_moments = len(optimizer.initial_moments)
        names = [name.removeprefix("extractor.") for name in tensors if name.startswith("extractor.")]
        try:
            return ServerState(
                round_index=int(tensors["round_index"][0]),
                extractor={name: tensors[f"extractor.{name}"] for name in names},
                extractor_moments={
                    name: [tensors[f"moment{index}.{name}"] for index in range(num_moments)] for name in names
                },
                columns=ColumnTable(
                    optimizer,
                    tensors["columns.weights"],
                    [tensors[f"columns.moment{index}"] for index in range(num_moments)],
                    tensors["columns.current_at"],
                ),
            )
        except KeyError as error:
            raise StateError(f"{path} has no {error}: it was saved with another server optimizer") from None


def read_state_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a saved state, as arrays of our own."""
    try:
        tensors, metadata = safetensors_file.read_file(path)
    except SafetensorsError as error:
        raise StateError(f"{path} is damaged: {error}") from None
    if metadata.get("format") != FORMAT:
        raise StateError(f"{path} has format {metadata.get('format')!r}; expected {FORMAT!r}")
    return {name: np.array(tensor) for name, tensor in tensors.items() if not isinstance(tensor, Bfloat16)}
