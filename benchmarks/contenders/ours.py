"""Our simulation: in this process or with workers, everything through the wire, FedAvg on the server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders.problem import CLASSES, CLIENTS, DIM, SPEC, Problem, write_outcome
from benchmarks.contenders.turns import turns
from ondevice.backends.eager import EagerBackend
from ondevice.client.client import Client
from ondevice.contract.vocabulary import COLUMNS
from server_sim.engines import EngineSettings, open_engine
from server_sim.one_round import run_round
from server_sim.server.aggregation import Aggregator
from server_sim.server.optimizers import FedAvg
from server_sim.server.state import ServerState


@dataclass(frozen=True)
class Clients:
    """What a worker process makes its clients from."""

    scheme: str

    def __call__(self) -> Callable[[int], Client]:
        problem = Problem(self.scheme)
        backend = EagerBackend(SPEC, problem.dense)
        return lambda client_id: Client(client_id, problem.examples[client_id], client_id, lambda: backend)


def main(scheme: str, outcome: Path, workers: int) -> None:
    problem = Problem(scheme)
    shapes = {name: value.shape for name, value in problem.dense.items()}
    aggregator = Aggregator(shapes, {COLUMNS: (CLASSES, DIM)}, "selected")
    engine = "workers" if workers else "in-process"
    with open_engine(engine, Clients(scheme), EngineSettings(workers)) as link:
        for number in turns():
            dense = {name: value.copy() for name, value in problem.dense.items()}
            state = ServerState.fresh(FedAvg(), dense, {COLUMNS: problem.columns.copy()})
            report = run_round(state, problem.plan, range(CLIENTS), link, aggregator)
            assert report.num_updates == CLIENTS
            if number == 0:
                write_outcome(outcome, state.dense, state.tables[COLUMNS].read_all(state.round_index))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
