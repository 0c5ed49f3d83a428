"""Federations: one run, and runs as they are read again; `fedss.api.tables` has many of them.

    run = fedss.simulate("glyphs-tiny", rounds=2, out="runs/first")
    run.curve       [(2, 0.475)]

Nothing is printed and no signal handler is installed: progress is heard of by callbacks, a run is stopped by `stop`, and
Ctrl-C is Python's own.  A run that was stopped or killed goes on with `resume=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fedss.api.callbacks import Advance, Note, Stop, never, unheard
from fedss.api.errors import UsageError, WrongArgument
from fedss.api.exported_step import check_runtime, exported_step
from fedss.api.places import Place, place_for
from ondevice.backends.eager import EagerBackend
from ondevice.tools.cache_folder import default_cache_folder
from server_sim.data.population import Population, open_population
from server_sim.experiment import Experiment, experiment_names, load_experiment, parsed_overrides
from server_sim.metrics import METRICS
from server_sim.preparation import (
    ClientsRecipe,
    check_experiment,
    initial_weights,
    population_path,
    step_spec,
)
from server_sim.runs.directory import RunDirectory
from server_sim.runs.records import RoundRecord, read_run, round_record
from server_sim.simulation import Interrupted, Simulation

if TYPE_CHECKING:
    from fedss.device_rounds import DeviceChoice

__all__ = [
    "DEFAULT_RUNS",
    "METRICS",
    "ClientOptions",
    "Experiment",
    "Interrupted",
    "RoundRecord",
    "Run",
    "RunStart",
    "check_run",
    "experiment_names",
    "load",
    "open_run",
    "run_folder",
    "simulate",
]

DEFAULT_RUNS = Path("runs")
Figure = str | int | float


@dataclass(frozen=True)
class Run:
    """A complete run."""

    path: Path
    """Its folder: configuration, metrics.jsonl, TensorBoard events, the server's state."""
    experiment: Experiment
    summary: Mapping[str, Figure]
    rounds: tuple[RoundRecord, ...]

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(rounds done, score) wherever the run was evaluated."""
        return [(line.round + 1, line.score) for line in self.rounds if line.score is not None]


@dataclass(frozen=True)
class RunStart:
    """Data and clients are ready; the first round comes."""

    path: Path
    experiment: Experiment
    name: str = ""
    """In its table; empty for a run by itself."""
    number: int = 1
    total: int = 1


class ClientOptions(TypedDict, total=False):
    """Arguments of `simulate` that every run of a table gets alike."""

    resume: bool
    workers: int
    engine: str | None
    address: str | None
    runtime: str | None
    devices: DeviceChoice | Sequence[str]
    cache: str | Path | None
    on_round: Callable[[RoundRecord], None] | None
    on_data: Advance | None
    on_note: Note
    stop: Stop


def simulate(
    experiment: str | Path | Experiment,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    engine: str | None = None,
    address: str | None = None,
    runtime: str | None = None,
    devices: DeviceChoice | Sequence[str] = (),
    cache: str | Path | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
    on_run: Callable[[RunStart], None] | None = None,
    on_data: Advance | None = None,
    on_note: Note = unheard,
    stop: Stop = never,
) -> Run:
    """Run a federation in this process and thread, and return it when it is complete.

    experiment  the name of one that comes with the package, a .toml file, or an `Experiment`
    rounds, seed, overrides
                change the experiment: {"client.learning_rate": 0.05}, or ["client.learning_rate=0.05"]
    out         the run's folder; runs/NAME if not given
    resume      go on where an earlier run in that folder was stopped or killed
    workers     processes that train clients; the result is the same.  0: one per core, of the whole cluster if there is
                one.  A script that asks for more than one needs `if __name__ == "__main__":`, as all multiprocessing does
    engine      who holds the conversations with simulated clients, as in `server_sim.engines`; worker processes, or this
                one for a single worker, if not given
    address     HOST:PORT of a Ray cluster that is there already, for engine="ray"; without it Ray runs on this machine
                alone, and as long as the run
    runtime     what clients train on: eager, or a runtime that the step is exported for first
    devices     names as `fedss devices` lists them, or a `DeviceChoice`
    stop        asked between two clients: True saves the state and raises `Interrupted`

    Raises `Interrupted`, `UsageError`, `ConfigurationError` for an experiment that cannot be run, and what data, artifacts
    and devices raise.
    """
    loaded = load(experiment, rounds, seed, overrides)
    if loaded.table is not None:
        raise UsageError("the experiment has a [table]; run it with simulate_table")
    path = run_folder(experiment, out)
    place = place_for(loaded, workers, runtime, devices, engine, address)
    check_run(loaded, path, resume)
    cache_folder = default_cache_folder() if cache is None else Path(cache)
    data = population_path(loaded.data, cache_folder, on_data)
    population = open_population(data)
    loaded.check_clients(population.name, len(population.client_ids))
    recipe = _clients(loaded, place, data, population, path, on_note)
    # The server evaluates, and trains the centralized reference, on the backend that defines the step.
    backend = EagerBackend(recipe.spec, recipe.initial)
    with place.open_link(recipe, loaded.server.client_timeout, cache_folder, on_note) as link:
        simulation = Simulation(loaded, population, backend, recipe.initial, link, path)
        if on_run is not None:
            on_run(RunStart(path, loaded))

        def on_line(line: dict[str, Any]) -> None:
            if on_round is not None:
                on_round(round_record(line, loaded))

        simulation.run(resume, on_line, stop)
    return open_run(path)


def open_run(path: str | Path) -> Run:
    """A complete run in its folder."""
    record = read_run(Path(path))
    summary = RunDirectory(record.path).summary()
    if summary is None:
        raise UsageError(f"{path} is not complete; go on with it: resume=True, or --resume")
    return Run(record.path, record.experiment, summary, record.rounds)


def load(
    experiment: str | Path | Experiment,
    rounds: int | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
) -> Experiment:
    """The experiment with what was asked to be different."""
    if isinstance(overrides, str):
        raise WrongArgument("overrides", f"is {overrides!r}; expected a list of FIELD=VALUE, or a dictionary")
    changes = dict(overrides) if isinstance(overrides, Mapping) else {}
    texts = () if isinstance(overrides, Mapping) else tuple(overrides)
    if isinstance(experiment, Experiment):
        loaded, changes = experiment, {**parsed_overrides(texts), **changes}
    else:
        loaded = load_experiment(str(experiment), texts)
    if rounds is not None:
        changes["server.rounds"] = rounds
    if seed is not None:
        changes |= {"seed": seed, **({"table.seeds": [seed]} if loaded.table else {})}
    return loaded.overridden(changes) if changes else loaded


def _clients(
    experiment: Experiment, place: Place, data: Path, population: Population, path: Path, note: Note
) -> ClientsRecipe:
    spec = step_spec(experiment, population)
    initial = initial_weights(experiment, spec)
    runtime = check_runtime(place.runtime)
    exported = (
        None
        if runtime is None
        else exported_step(runtime, experiment, population, (spec, initial), path, note)
    )
    return ClientsRecipe(data, spec, initial, experiment.seed, exported, RunDirectory(path).memories)


def check_run(experiment: Experiment, path: Path, resume: bool) -> None:
    """What is cheap to check, before what takes minutes."""
    check_experiment(experiment)
    RunDirectory(path).check_usable(resume)


def run_folder(experiment: str | Path | Experiment, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    if isinstance(experiment, Experiment):
        raise WrongArgument("out", "is not given, and an Experiment has no name to call a folder by")
    return DEFAULT_RUNS / Path(experiment).stem
