"""The experiment as both halves read it: a name and overrides in Flower's run configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ondevice.tools.cache_folder import default_cache_folder
from server_sim.experiment import Experiment, load_experiment

Configuration = Mapping[str, bool | int | float | str]


def experiment_of(run_config: Configuration) -> Experiment:
    return load_experiment(str(run_config["experiment"]), str(run_config["overrides"]).split())


def cache_of(config: Configuration) -> Path:
    """Of the server's run configuration, or of a node's own: every machine has a folder of its own."""
    return Path(str(config.get("cache") or default_cache_folder()))
