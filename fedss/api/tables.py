"""Many federations: every run of an experiment's `[table]`, one after the other or side by side, and their means.

    table = fedss.simulate_table("glyphs-table1", parallel=2)
    table.cells

A table that was stopped goes on with `resume=True`: runs that are complete are not run again.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from fedss.api.callbacks import unheard
from fedss.api.errors import WrongArgument
from fedss.api.places import place_for
from fedss.api.runs import ClientOptions, Run, RunStart, check_run, load, open_run, run_folder, simulate
from server_sim.experiment import Experiment
from server_sim.runs.directory import RunDirectory, write_json
from server_sim.runs.tables import TableCell, TableRun, table_cells, table_runs

__all__ = ["Table", "TableCell", "simulate_table"]


@dataclass(frozen=True)
class Table:
    """Every run of an experiment's `[table]`, and their means."""

    path: Path
    experiment: Experiment
    cells: tuple[TableCell, ...]
    runs: tuple[Run, ...]


def simulate_table(
    experiment: str | Path | Experiment,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    out: str | Path | None = None,
    parallel: int = 1,
    on_run: Callable[[RunStart], None] | None = None,
    **options: Unpack[ClientOptions],
) -> Table:
    """Every run of the table that is not complete yet; its rows are written to table.json as they come.

    The arguments are those of `simulate`; `seed` takes the place of the table's seeds.

    parallel  runs that are at work side by side, each in a process of its own with its clients one after the other; of
              these `on_note` alone is heard, when a run is complete.  A script that asks for more than one needs
              `if __name__ == "__main__":`, as all multiprocessing does
    """
    loaded = load(experiment, rounds, seed, overrides)
    path = run_folder(experiment, out)
    resume = options.get("resume", False)
    workers, runtime, devices = options.get("workers", 1), options.get("runtime"), options.get("devices", ())
    planned = table_runs(loaded)
    if parallel > 1 and (workers > 1 or devices or options.get("engine") is not None):
        raise WrongArgument(
            "parallel", f"is {parallel}: each run has a process of its own, and no workers, engine or devices"
        )
    for run in planned:
        place_for(run.experiment, workers, runtime, devices, options.get("engine"), options.get("address"))
        check_run(run.experiment, path / run.name, resume)
    complete = {
        number: open_run(path / run.name)
        for number, run in enumerate(planned)
        if resume and RunDirectory(path / run.name).is_complete(run.experiment)
    }
    missing = [number for number in range(len(planned)) if number not in complete]
    if parallel > 1:
        arriving = _side_by_side(planned, missing, path, parallel, options)
    else:
        arriving = _one_by_one(planned, missing, path, on_run, options)
    cells = _write_rows(path, loaded, planned, complete)
    for number, finished in arriving:
        complete[number] = finished
        cells = _write_rows(path, loaded, planned, complete)
    return Table(path, loaded, tuple(cells), tuple(complete[number] for number in range(len(planned))))


def _write_rows(
    path: Path, experiment: Experiment, planned: Sequence[TableRun], complete: Mapping[int, Run]
) -> list[TableCell]:
    """table.json, of the runs that are complete."""
    cells = table_cells((planned[number], dict(complete[number].summary)) for number in sorted(complete))
    if cells:
        write_json(
            path / "table.json",
            {"title": experiment.title, "rows": [dataclasses.asdict(cell) for cell in cells]},
        )
    return cells


def _one_by_one(
    planned: Sequence[TableRun],
    missing: Sequence[int],
    path: Path,
    on_run: Callable[[RunStart], None] | None,
    options: ClientOptions,
) -> Iterator[tuple[int, Run]]:
    for number in missing:
        run = planned[number]
        tell = partial(_tell_place, on_run, run.name, number + 1, len(planned))
        yield number, simulate(run.experiment, out=path / run.name, on_run=tell, **options)


def _tell_place(
    on_run: Callable[[RunStart], None] | None, name: str, number: int, total: int, start: RunStart
) -> None:
    if on_run is not None:
        on_run(replace(start, name=name, number=number, total=total))


def _side_by_side(
    planned: Sequence[TableRun], missing: Sequence[int], path: Path, parallel: int, options: ClientOptions
) -> Iterator[tuple[int, Run]]:
    """As they are complete.  One that fails ends the table once those at work have ended; all that was done is kept."""
    note, cache = options.get("on_note", unheard), options.get("cache")
    resume, runtime = options.get("resume", False), options.get("runtime")
    with ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn")) as pool:
        at_work = {
            pool.submit(
                _run_alone, planned[number].experiment, path / planned[number].name, resume, runtime, cache
            ): number
            for number in missing
        }
        try:
            for future in as_completed(at_work):
                number = at_work[future]
                finished = open_run(future.result())
                note(f"{planned[number].name}: {finished.curve[-1][1]:.4f}")
                yield number, finished
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _run_alone(
    experiment: Experiment, path: Path, resume: bool, runtime: str | None, cache: str | Path | None
) -> Path:
    """In a process of the pool."""
    return simulate(experiment, out=path, resume=resume, runtime=runtime, cache=cache).path
