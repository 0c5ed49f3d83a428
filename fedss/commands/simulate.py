"""`fedss simulate EXPERIMENT`: run a federation, or a whole table of them."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedss.console import INTERRUPTED, Json, UsageError, log, progress, show_result
from fedss.device_rounds import DeviceChoice, DevicesExhausted, open_device_link
from fedss.exported_step import EAGER, check_runtime, exported_step
from fedss.locations import DEFAULT_CACHE, DEFAULT_RUNS, Cache
from ondevice.backends.eager import EagerBackend
from ondevice.backends.opening import RUNTIMES
from server_sim.data.population import open_population
from server_sim.engines.in_process import Link
from server_sim.engines.workers import WorkerLink
from server_sim.experiment import Experiment, experiment_names, load_experiment
from server_sim.preparation import (
    ClientsRecipe,
    check_experiment,
    initial_weights,
    open_link,
    population_path,
    step_spec,
)
from server_sim.runs.directory import RunDirectory, write_json
from server_sim.runs.tables import TableCell, table_cells, table_runs
from server_sim.simulation import Interrupted, Simulation

ON_DEVICES = "executorch"
"""The runtime of choice on devices: the fastest and smallest."""


def command(
    experiment: Annotated[
        str, typer.Argument(help=f"A .toml file, or one of: {', '.join(experiment_names())}.")
    ],
    rounds: Annotated[int | None, typer.Option(help="Override server.rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Override the seed (and a table's seeds).")] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that train clients; the result is the same.  0: one a core.")
    ] = 0,
    runtime: Annotated[
        str | None,
        typer.Option(
            help=f"What the clients train on: {', '.join([EAGER, *RUNTIMES])}.",
            show_default=f"{EAGER}, or {ON_DEVICES} with --device",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="Train the clients on a device: host, qemu, emulator, emulator:NAME or adb:SERIAL, as `fedss devices` "
            "lists them.  Repeat it to spread a round over several."
        ),
    ] = None,
    simulated: Annotated[
        int,
        typer.Option(
            min=0, help="With --device: how many of a round's clients are simulated here all the same."
        ),
    ] = 0,
    device_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that one client's program may run on a device.")
    ] = 600,
    device_retries: Annotated[
        int, typer.Option(min=0, help="How often a client is tried again when its device was lost.")
    ] = 1,
    device_patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a device to come back when none is left.")
    ] = 60,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run was stopped or killed.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/EXPERIMENT")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Override any field, as in client.learning_rate=0.05."
        ),
    ] = None,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Run federated rounds: clients train slices of the model, the server aggregates them.

    [bold]Examples[/]

      fedss simulate glyphs-fedss --rounds 20
      fedss simulate glyphs-fedss --set client.method=positives_only --out runs/posonly
      fedss simulate glyphs-table1            (a whole table; go on after a stop with --resume)
      fedss simulate glyphs-tiny --device emulator:phone1 --device host --simulated 2

    A client that its device fails is dropped with the reason, and the round goes on; when no device is left the run is
    saved and ends with code 4.

    A run's folder holds its configuration, metrics.jsonl, TensorBoard events and the server's state.
    Ctrl-C saves and ends; --resume goes on.
    """
    loaded = load_experiment(experiment, override or ())
    if rounds is not None:
        loaded = loaded.overridden({"server.rounds": rounds})
    if seed is not None:
        loaded = loaded.overridden({"seed": seed, **({"table.seeds": [seed]} if loaded.table else {})})
    run_path = out or DEFAULT_RUNS / Path(experiment).stem
    where = _where(
        loaded, workers, runtime, device or (), simulated, (device_timeout, device_retries, device_patience)
    )
    if loaded.table:
        cells = run_table(loaded, run_path, where, resume, cache)
        payload = {"run_dir": str(run_path), "rows": [dataclasses.asdict(cell) for cell in cells]}
        show_result(as_json, payload, cells_table(loaded, cells))
    else:
        summary = run_experiment(loaded, run_path, where, resume, cache)
        show_result(as_json, summary, summary_table(loaded, summary))


@dataclasses.dataclass(frozen=True)
class Where:
    """What the clients train on, and in which processes and devices."""

    runtime: str
    workers: int
    devices: DeviceChoice | None

    def open_link(
        self, recipe: ClientsRecipe, client_timeout: float, cache: Path
    ) -> AbstractContextManager[Link]:
        if self.devices is None:
            return open_link(recipe, self.workers, client_timeout)
        simulated = partial(WorkerLink, recipe, min(self.workers, self.devices.simulated), client_timeout)
        return open_device_link(self.devices, recipe, cache, simulated)


def run_experiment(
    experiment: Experiment, run_path: Path, where: Where, resume: bool, cache: Path
) -> dict[str, Any]:
    """One run with live progress; returns its summary."""
    check_run(experiment, run_path, where, resume)
    with progress(f"data {experiment.data.population}") as advance:
        data = population_path(experiment.data, cache, advance)
    population = open_population(data)
    experiment.check_clients(population.name, len(population.client_ids))
    spec = step_spec(experiment, population)
    initial = initial_weights(experiment, spec)
    exported = exported_step(where.runtime, experiment, population, spec, initial, run_path)
    recipe = ClientsRecipe(data, spec, initial, experiment.client.precision, experiment.seed, exported)
    # The server evaluates, and trains the centralized reference, on the backend that defines the step.
    backend = EagerBackend(spec, initial)
    timeout = experiment.server.client_timeout
    with where.open_link(recipe, timeout, cache) as link, _stop_on_interrupt() as stop_requested:
        simulation = Simulation(experiment, population, backend, initial, link, run_path)
        with _round_progress(experiment) as on_round:
            try:
                return simulation.run(resume, on_round, stop_requested)
            except DevicesExhausted as stop:
                log.print(f"saved in {run_path}; go on with --resume", soft_wrap=True)
                raise stop
            except Interrupted as stop:
                log.print(f"{stop}; saved in {run_path}; go on with --resume", soft_wrap=True)
                raise typer.Exit(INTERRUPTED) from None


def check_run(experiment: Experiment, run_path: Path, where: Where, resume: bool) -> None:
    """What is cheap to check, before what takes minutes."""
    check_runtime(where.runtime)
    check_experiment(experiment)
    RunDirectory(run_path).check_usable(resume)


def run_table(
    experiment: Experiment, table_path: Path, where: Where, resume: bool, cache: Path
) -> list[TableCell]:
    """Every run of the table that is not complete yet; its rows are written to table.json as they come."""
    runs = table_runs(experiment)
    for run in runs:
        check_run(run.experiment, table_path / run.name, where, resume)
    results = []
    for number, run in enumerate(runs, start=1):
        log.print(Text(f"{number} of {len(runs)}", "bold"), f" {run.name}")
        directory = RunDirectory(table_path / run.name)
        summary = directory.summary() if resume else None
        if summary is None:
            summary = run_experiment(run.experiment, directory.path, where, resume, cache)
        results.append((run, summary))
        cells = [dataclasses.asdict(cell) for cell in table_cells(results)]
        write_json(table_path / "table.json", {"title": experiment.title, "rows": cells})
    return table_cells(results)


def _where(
    experiment: Experiment,
    workers: int,
    runtime: str | None,
    devices: Sequence[str],
    simulated: int,
    failures: tuple[float, int, float],
) -> Where:
    num_workers = workers or os.cpu_count() or 1
    if not devices:
        if simulated:
            raise UsageError("--simulated is for runs with --device; without it every client is simulated")
        return Where(runtime or EAGER, num_workers, None)
    if experiment.client.method == "centralized" and experiment.table is None:
        raise UsageError(
            "client.method is centralized: there are no clients to train on devices; leave --device out"
        )
    choice = DeviceChoice(tuple(devices), simulated, *failures)
    choice.check(experiment.server.clients_per_round, runtime or ON_DEVICES)
    return Where(runtime or ON_DEVICES, num_workers, choice)


def summary_table(experiment: Experiment, summary: dict[str, Any]) -> Group:
    """A run's result for people."""
    table = Table("", "", title=experiment.title, show_header=False)
    for name, value in summary.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    return Group(table, f"fedss report {summary['run_dir']}  makes a page of it")


def cells_table(experiment: Experiment, cells: list[TableCell]) -> Table:
    """A table like Table 1 of the paper, a row a method and width."""
    metric = {"top1": "top-1 accuracy", "map_at_r": "MAP@10"}[experiment.evaluation.metric]
    table = Table(
        "method", "|N_k|", "|S_k|", "% of n", f"{metric} (%)", "kB down", "kB up", title=experiment.title
    )
    for cell in cells:
        spread = f" ± {100 * cell.deviation:.1f}" if cell.num_seeds > 1 else ""
        table.add_row(
            cell.label,
            "" if cell.num_negatives is None else str(cell.num_negatives),
            f"{cell.mean_width:.0f}",
            f"{100 * cell.width_share:.1f}",
            f"{100 * cell.mean:.1f}{spread}",
            f"{cell.bytes_down_per_client / 1000:.0f}" if cell.bytes_down_per_client else "",
            f"{cell.bytes_up_per_client / 1000:.0f}" if cell.bytes_up_per_client else "",
        )
    return table


@contextmanager
def _round_progress(experiment: Experiment) -> Iterator[Callable[[dict[str, Any]], None]]:
    """The current loss, accuracy and bytes: a live bar on a terminal, plain lines elsewhere."""
    metric = experiment.evaluation.metric
    latest = {"score": ""}

    def describe(line: dict[str, Any]) -> str:
        if metric in line:
            latest["score"] = f"  {metric} {100 * line[metric]:.1f} %"
        updates = line.get("num_updates", 0)
        per_client = f"  {line['bytes_down'] / updates / 1000:.0f} kB down" if updates else ""
        dropped = f"  {len(line['dropped'])} dropped" if line.get("dropped") else ""
        return f"loss {line['mean_loss']:.3f}{latest['score']}{per_client}{dropped}"

    def explain_drops(line: dict[str, Any]) -> None:
        for client_id, reason in line.get("dropped", {}).items():
            log.print(f"round {line['round']}: dropped client {client_id}: {reason}")
        for reason in line.get("abandoned", []):
            log.print(f"abandoned: {reason}")

    total = experiment.server.rounds
    if log.is_terminal:
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=log) as bar:
            task = bar.add_task("", total=total)

            def show(line: dict[str, Any]) -> None:
                explain_drops(line)
                bar.update(task, completed=line["round"] + 1, description=describe(line))

            yield show
    else:
        every = max(1, total // 10)

        def show_plain(line: dict[str, Any]) -> None:
            explain_drops(line)
            if metric in line or (line["round"] + 1) % every == 0:
                log.print(f"round {line['round'] + 1} of {total}  {describe(line)}")

        yield show_plain


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the run to stop at the next safe moment; the second ends it at once."""
    asked = False

    def ask(signum: int, frame: object) -> None:  # noqa: ARG001 - the signature that signal.signal calls
        nonlocal asked
        asked = True
        log.print("stopping after the clients that are training now; Ctrl-C again ends at once")
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
