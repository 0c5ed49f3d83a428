"""The runs of a shipped experiment, and what makes one of them tiny."""

from __future__ import annotations

from server_sim.experiment import Experiment, load_experiment
from server_sim.runs.tables import table_runs

TINY = {"server.rounds": 2, "server.clients_per_round": 2, "evaluation.every": 2, "server.save_every": 2}


def runs_of(name: str) -> list[Experiment]:
    experiment = load_experiment(name)
    return [experiment] if experiment.table is None else [run.experiment for run in table_runs(experiment)]
