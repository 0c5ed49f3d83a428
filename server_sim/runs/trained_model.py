"""A run's model as its last save has it, opened again to be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondevice.backends import Backend
from ondevice.backends.eager import EagerBackend
from ondevice.client.embedding import embed_examples
from ondevice.contract.vocabulary import COLUMNS, ExampleSet, FloatArray, IntArray
from server_sim.data.population import Population, open_population
from server_sim.first_state import first_state
from server_sim.preparation import initial_weights, population_path, step_spec
from server_sim.runs.records import RunRecord, RunUnreadable
from server_sim.server.state import ServerState


@dataclass(frozen=True)
class TrainedModel:
    """What the server held when it last saved."""

    run: RunRecord
    population: Population
    backend: Backend
    state: ServerState

    def embeddings(self, examples: ExampleSet) -> FloatArray:
        """[N, d]"""

        def read_rows(table: str, ids: IntArray) -> FloatArray:
            return self.state.tables[table].read(ids, self.state.round_index)

        return embed_examples(self.backend, self.state.dense, examples, read_rows)

    def columns(self, classes: IntArray) -> FloatArray:
        """[C, d]: W of these classes."""
        return self.state.tables[COLUMNS].read(np.asarray(classes), self.state.round_index)


def open_trained(run: RunRecord, cache: Path) -> TrainedModel:
    """The population from the cache, the weights from the run's folder."""
    experiment, saved = run.experiment, run.path / "state.safetensors"
    if experiment.server.store != "memory":
        raise RunUnreadable(
            f"{run.path} keeps its tables in mapped files; only models in memory are opened here"
        )
    if not saved.is_file():
        raise RunUnreadable(f"{saved} is missing: the run has not saved a model; go on with it by --resume")
    population = open_population(population_path(experiment.data, cache))
    spec = step_spec(experiment, population)
    initial = initial_weights(experiment, spec)
    backend = EagerBackend(spec, initial)
    fresh = first_state(experiment, population.table_sizes, backend.signature, initial, run.path / "tables")
    return TrainedModel(run, population, backend, ServerState.load(saved, fresh))
