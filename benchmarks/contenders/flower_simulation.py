"""Flower's own simulation: its FedAvg and its Ray backend with one actor.

Flower has no sub-models, so the whole of W travels under both schemes; under FedSS a client computes with its rows alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contenders import flower_client
from benchmarks.contenders.problem import CLIENTS, Network, Problem, network_outcome
from benchmarks.contenders.turns import turns


def main(scheme: str, outcome: Path) -> None:
    network = Network(Problem(scheme))
    config = ConfigRecord({"scheme": scheme})

    def serve(grid: Grid, _: Context) -> None:
        arrays = ArrayRecord(network.state_dict())
        for number in turns():
            strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
            result = strategy.start(grid, arrays, num_rounds=1, train_config=config)
            arrays = result.arrays
            if number == 0:
                network.load_state_dict(arrays.to_torch_state_dict())
                network_outcome(outcome, network)

    server_app = ServerApp()
    server_app.main()(serve)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    # "local": never a Ray cluster that somebody else has started on this machine.
    start = {"address": "local", "num_cpus": 1, "_node_ip_address": "127.0.0.1", "include_dashboard": False}
    run_simulation(
        server_app,
        flower_client.app,
        CLIENTS,
        backend_config={"client_resources": resources, "init_args": start},
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
