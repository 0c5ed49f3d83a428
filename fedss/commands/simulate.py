"""`fedss simulate EXPERIMENT`: run a federation, or a whole table of them."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedss.api.callbacks import Advance
from fedss.api.exported_step import EAGER
from fedss.api.places import ON_DEVICES, engine_names
from fedss.api.runs import (
    DEFAULT_RUNS,
    METRICS,
    ClientOptions,
    Experiment,
    Interrupted,
    RoundRecord,
    Run,
    RunStart,
    experiment_names,
    load,
    simulate,
)
from fedss.api.tables import TableCell, simulate_table
from fedss.console import INTERRUPTED, Json, UsageError, arguments_as_options, log, progress, show_result
from fedss.device_rounds import DeviceChoice, DevicesExhausted
from fedss.locations import DEFAULT_CACHE, Cache
from ondevice.backends.opening import RUNTIMES


def command(
    experiment: Annotated[
        str, typer.Argument(help=f"A .toml file, or one of: {', '.join(experiment_names())}.")
    ],
    rounds: Annotated[int | None, typer.Option(help="Override server.rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Override the seed (and a table's seeds).")] = None,
    workers: Annotated[
        int,
        typer.Option(min=0, help="Processes that train clients; the result is the same.  0: one per core."),
    ] = 0,
    parallel: Annotated[
        int,
        typer.Option(
            min=1, help="Of a table: runs side by side, each in a process of its own, without workers."
        ),
    ] = 1,
    engine: Annotated[
        str | None,
        typer.Option(
            help=f"Who holds the conversations with simulated clients: {', '.join(engine_names())}.",
            show_default="workers, or in-process for one worker",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --engine ray: a cluster that was started with `ray start`.",
            show_default="Ray on this machine alone, as long as the run",
        ),
    ] = None,
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
      fedss simulate glyphs-fedss --set scheme.name=positives_only --out runs/posonly
      fedss simulate glyphs-table1            (a whole table; go on after a stop with --resume)
      fedss simulate glyphs-table1 --parallel 2
      fedss simulate glyphs-tiny --device emulator:phone1 --device host --simulated 2

    A client that its device fails is dropped with the reason, and the round goes on; when no device is left the run is
    saved and ends with code 4.

    A run's folder holds its configuration, metrics.jsonl, TensorBoard events and the server's state.
    Ctrl-C saves and ends; --resume goes on.
    """
    loaded = load(experiment, rounds, seed, override or ())
    if simulated and not device:
        raise UsageError("--simulated is for runs with --device; without it every client is simulated")
    if parallel > 1 and not loaded.table:
        raise UsageError("--parallel is for experiments with a [table]; this is one run: use --workers")
    failures = (device_timeout, device_retries, device_patience)
    with _Display() as display, arguments_as_options():
        options: ClientOptions = {
            "resume": resume,
            "workers": 1 if parallel > 1 and not workers else workers,
            "engine": engine,
            "address": address,
            "runtime": runtime,
            "devices": DeviceChoice(tuple(device), simulated, *failures) if device else (),
            "cache": cache,
            "on_round": display.on_round,
            "on_data": display.on_data,
            "on_note": display.on_note,
            "stop": display.stop_requested,
        }
        path = out or DEFAULT_RUNS / Path(experiment).stem
        if loaded.table:
            table = simulate_table(loaded, out=path, parallel=parallel, on_run=display.on_run, **options)
        else:
            run = simulate(loaded, out=path, on_run=display.on_run, **options)
    if loaded.table:
        payload = {"run_dir": str(path), "rows": [dataclasses.asdict(cell) for cell in table.cells]}
        show_result(as_json, payload, cells_table(loaded, table.cells))
    else:
        show_result(as_json, run.summary, summary_table(run))


class _Display:
    """What a person sees while it runs, one live bar at a time, and how Ctrl-C is heard while there are rounds."""

    def __init__(self) -> None:
        self._phase = ExitStack()
        self._start: RunStart | None = None
        self._advance: Advance | None = None
        self._show_round: Callable[[RoundRecord], None] | None = None
        self._asked_to_stop = False

    def on_data(self, done: int, total: int) -> None:
        if self._advance is None:
            self._advance = self._phase.enter_context(progress("data"))
        self._advance(done, total)

    def on_run(self, start: RunStart) -> None:
        self._phase.close()
        self._start, self._advance = start, None
        if start.name:
            log.print(Text(f"{start.number} of {start.total}", "bold"), f" {start.name}")
        self._phase.enter_context(_heard_interrupt(self._ask_to_stop))
        self._show_round = self._phase.enter_context(_round_progress(start.experiment))

    def on_round(self, line: RoundRecord) -> None:
        assert self._show_round is not None
        assert self._start is not None
        self._show_round(line)
        if line.round + 1 == self._start.experiment.server.rounds:
            self._phase.close()  # what comes next, such as another export, ends at Ctrl-C as anything does

    def stop_requested(self) -> bool:
        """Remembered from run to run: who pressed Ctrl-C in a run's last round does not want the next one."""
        return self._asked_to_stop

    def _ask_to_stop(self) -> None:
        self._asked_to_stop = True
        log.print("stopping after the clients that are training now; Ctrl-C again ends at once")

    def on_note(self, what: str) -> None:
        log.print(what, style="dim", soft_wrap=True)

    def __enter__(self) -> _Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._phase.close()
        if not isinstance(error, Interrupted) or self._start is None:
            return
        cause = "" if isinstance(error, DevicesExhausted) else f"{error}; "
        log.print(f"{cause}saved in {self._start.path}; go on with --resume", soft_wrap=True)
        if not isinstance(error, DevicesExhausted):
            raise typer.Exit(INTERRUPTED) from None


def summary_table(run: Run) -> Group:
    """A run's result for people."""
    table = Table("", "", title=run.experiment.title, show_header=False)
    for name, value in run.summary.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    return Group(table, f"fedss report {run.path}  makes a page of it")


def cells_table(experiment: Experiment, cells: Sequence[TableCell]) -> Table:
    """A table like Table 1 of the paper, a row per scheme and width."""
    metric = METRICS[experiment.evaluation.metric].title
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
def _round_progress(experiment: Experiment) -> Iterator[Callable[[RoundRecord], None]]:
    """The current loss, accuracy and bytes: a live bar on a terminal, plain lines elsewhere."""
    latest = {"score": ""}

    def describe(line: RoundRecord) -> str:
        if line.score is not None:
            latest["score"] = f"  {experiment.evaluation.metric} {100 * line.score:.1f} %"
        per_client = f"  {line.bytes_down / 1000:.0f} kB down" if line.num_updates else ""
        dropped = f"  {len(line.dropped)} dropped" if line.dropped else ""
        return f"loss {line.mean_loss:.3f}{latest['score']}{per_client}{dropped}"

    def explain_drops(line: RoundRecord) -> None:
        for client_id, reason in line.dropped.items():
            log.print(f"round {line.round}: dropped client {client_id}: {reason}")
        for reason in line.abandoned:
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

            def show(line: RoundRecord) -> None:
                explain_drops(line)
                bar.update(task, completed=line.round + 1, description=describe(line))

            yield show
    else:
        every = max(1, total // 10)

        def show_plain(line: RoundRecord) -> None:
            explain_drops(line)
            if line.score is not None or (line.round + 1) % every == 0:
                log.print(f"round {line.round + 1} of {total}  {describe(line)}")

        yield show_plain


@contextmanager
def _heard_interrupt(hear: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C asks the run to stop at the next safe moment; the second ends it at once."""

    def heard(signum: int, frame: object) -> None:  # noqa: ARG001 - the signature that signal.signal calls
        signal.signal(signal.SIGINT, before)
        hear()

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
