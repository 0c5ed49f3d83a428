"""The server's half: `fedss.simulate` as always, its engine being Flower."""

from __future__ import annotations

import time

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedss
from fedss_flower.engine import FLOWER_RUN, FlowerRun
from fedss_flower.settings import cache_of, experiment_of
from server_sim.engines import ENGINES


def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    while len(list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(0.5)
    FLOWER_RUN.set(FlowerRun(grid, int(config["batch"])))
    ENGINES["flower"] = "fedss_flower.engine:open_flower"
    fedss.simulate(
        experiment_of(config),
        out=str(config["out"]),
        engine="flower",
        cache=cache_of(config),
        on_round=lambda record: print(record, flush=True),
    )


app = ServerApp()
app.main()(main)
