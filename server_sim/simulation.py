"""A run: rounds until done, evaluated now and then, saved so that a kill at any moment loses at most what was not saved.

per round:  choose clients -> `one_round.run_round` -> commit -> evaluate -> write the round's line -> save the state
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ondevice.backends import Backend
from ondevice.contract.link import Answer, ClientFailure, Link
from ondevice.contract.vocabulary import FloatArray, RoundPlan
from ondevice.contract.wire import UpdateLimits
from server_sim.data.population import Population
from server_sim.experiment import ConfigurationError, Experiment
from server_sim.first_state import first_state
from server_sim.metrics import METRICS, EvaluationView
from server_sim.one_round import RoundAbandoned, RoundReport, RoundRules, run_round
from server_sim.runs.directory import RunDirectory
from server_sim.schemes import RoundContext
from server_sim.server.aggregation import Aggregator
from server_sim.server.client_selection import select_clients
from server_sim.server.state import ServerState

StopRequested = Callable[[], bool]
OnRound = Callable[[dict[str, Any]], None]
"""Shown every round's metrics as they come."""


class Interrupted(RuntimeError):
    """The run was asked to stop; its state is saved."""


class Simulation:
    """One experiment on one population, in one run directory."""

    def __init__(
        self,
        experiment: Experiment,
        population: Population,
        backend: Backend,
        initial: dict[str, FloatArray],
        link: Link,
        run_path: Path,
    ) -> None:
        self.experiment = experiment
        self._population = population
        self._backend = backend
        self._initial = initial
        self._link = link
        self._run = RunDirectory(run_path)
        dims = backend.signature.table_dims
        self._aggregator = Aggregator(
            backend.signature.dense_shapes,
            {table: (population.table_sizes[table], dim) for table, dim in dims.items()},
            experiment.server.denominator,
        )
        self._sizes = [population.num_examples(client_id) for client_id in population.client_ids]
        experiment.check_clients(population.name, len(self._sizes))
        # The server knows how much each client holds, since it may select by that.  No honest client is beyond the largest
        # of them, and one that lies weighs no more than an honest one could: it cannot be the mean.  Holding each client
        # to its own number would do no better against a liar, who has the differences to lie with.
        self._rules = RoundRules(
            experiment.server.min_clients,
            UpdateLimits(
                experiment.server.max_examples or experiment.scheme.most_examples(max(self._sizes)),
                experiment.server.max_change,
            ),
            experiment.scheme.sides(population),
            tuple(transform.choice for transform in experiment.server.slice_transforms),
            experiment.scheme.before_apply,
        )

    def run(
        self, resume: bool, on_round: OnRound, stop_requested: StopRequested = lambda: False
    ) -> dict[str, Any]:
        """From the first round, or from the last saved state, to the end; returns the summary."""
        self._run.claim(resume)
        try:
            with closing(self._open_state(resume)) as state:
                # Made of the rows as they are, so a resumed run finds what it would have found.
                self._rules = replace(self._rules, index=self.experiment.scheme.open_index(state))
                self._run_rounds(state, on_round, stop_requested)
            summary = self._summarize()
            self._run.finish(summary)
            return summary
        finally:
            self._run.close()

    def _run_rounds(self, state: ServerState, on_round: OnRound, stop_requested: StopRequested) -> None:
        line = state.last_line()
        if line is not None and line["round"] not in {before["round"] for before in self._run.metrics()[-1:]}:
            on_round(self._record(state, line))  # killed between the two
        try:
            while state.round_index < self.experiment.server.rounds:
                on_round(self._next_round(state, stop_requested))
        except Interrupted:
            state.save(self._run.state_path)
            raise

    def _open_state(self, resume: bool) -> ServerState:
        """As the run in this folder left it, or at its start."""
        state = first_state(
            self.experiment,
            self._population.table_sizes,
            self._backend.signature,
            self._initial,
            self._run.tables_path,
        )
        path, rounds = self._run.state_path, self.experiment.server.rounds
        if resume and path.exists():
            self._run.check_same_settings(
                self.experiment
            )  # names the field, where the state would name tensors
            type(state).load(path, state)
            if state.round_index > rounds:
                raise ConfigurationError(
                    f"{path} is at round {state.round_index}; server.rounds is {rounds}: resume with at least as many"
                )
            self._run.resume(self.experiment, state.round_index)
        elif resume and self._run.holds_run():  # killed before the first save
            self._run.resume(self.experiment, 0)
            state.begin(path)
        else:
            self._run.start(self.experiment)
            state.begin(path)
        return state

    def _next_round(self, state: ServerState, stop_requested: StopRequested) -> dict[str, Any]:
        round_index = state.round_index
        started = time.perf_counter()
        if stop_requested():
            raise Interrupted("stopped between two rounds")
        context = RoundContext(
            self.experiment,
            self._population,
            self._backend,
            state,
            partial(self._federated_round, state, stop_requested),
        )
        line = self.experiment.scheme.play(context)
        line = {"round": round_index, **line, "seconds": time.perf_counter() - started}
        state.commit(line)
        return self._record(state, line)

    def _record(self, state: ServerState, line: dict[str, Any]) -> dict[str, Any]:
        """What is left of a round when the state has it."""
        server = self.experiment.server
        is_last = state.round_index == server.rounds
        if is_last or state.round_index % self.experiment.evaluation.every == 0:
            line |= self._evaluate(state)
        self._run.record(line)
        if is_last or state.is_due(server.save_every):
            state.save(self._run.state_path)
            self._run.memories.prune(state.round_index)
        return line

    def _federated_round(self, state: ServerState, stop_requested: StopRequested) -> dict[str, Any]:
        server = self.experiment.server
        sides = {name: side.table for name, side in self._rules.sides.items()}
        plan = self.experiment.round_plan(state.round_index, state.table_sizes, sides)
        link = _StoppableLink(self._link, stop_requested)
        selection = self.experiment.scheme.selection if server.selection == "scheme" else server.selection
        abandoned = []
        for attempt in range(server.max_attempts):
            rng = np.random.default_rng([self.experiment.seed, state.round_index, attempt])
            chosen = select_clients(self._sizes, server.clients_per_round, selection, rng)
            try:
                report = run_round(state, plan, chosen, link, self._aggregator, self._rules)
            except RoundAbandoned as error:
                abandoned.append(str(error))
                self._run.memories.forget(state.round_index, chosen)
                self._run.keep_traces(error.traces)
                continue
            self._run.keep_traces(report.traces)
            self._run.memories.forget(plan.round_index, report.dropped)
            return {**_report_line(report), "abandoned": abandoned}
        state.save(self._run.state_path)
        raise RoundAbandoned(f"gave up after {server.max_attempts} attempts; the last: {abandoned[-1]}")

    def _evaluate(self, state: ServerState) -> dict[str, float]:
        view = EvaluationView(
            self.experiment,
            self._population,
            self._backend,
            state.dense,
            lambda table, ids: state.tables[table].read(ids, state.round_index),
            lambda table: state.tables[table].blocks(state.round_index),
        )
        return METRICS[self.experiment.evaluation.metric].measure(view)

    def _summarize(self) -> dict[str, Any]:
        lines = self._run.metrics()
        updates = sum(line.get("num_updates", 0) for line in lines)
        measured = METRICS[self.experiment.evaluation.metric].titles

        def per_update(name: str) -> float:
            return sum(line.get(name, 0) for line in lines) / updates if updates else 0.0

        return {
            "run_dir": str(self._run.path),
            "title": self.experiment.title,
            "rounds": self.experiment.server.rounds,
            **{name: lines[-1][name] for name in measured},
            "mean_loss": lines[-1]["mean_loss"],
            "mean_width": float(
                np.mean([line.get("mean_width", self._population.num_classes) for line in lines])
            ),
            "num_classes": self._population.num_classes,
            "bytes_down_per_client": per_update("bytes_down"),
            "bytes_up_per_client": per_update("bytes_up"),
            "dropped_clients": sum(len(line.get("dropped", {})) for line in lines),
            "abandoned_rounds": sum(len(line.get("abandoned", [])) for line in lines),
            "client_updates_per_second": updates / sum(line["seconds"] for line in lines),
        }


def _report_line(report: RoundReport) -> dict[str, Any]:
    return {
        "mean_loss": report.mean_loss,
        "num_updates": report.num_updates,
        "mean_width": report.mean_width,
        "most_examples": report.most_examples,
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
        "dropped": {str(client_id): reason for client_id, reason in report.dropped.items()},
    }


class _StoppableLink:
    """Looks between two clients whether the run should stop; the state has not changed yet then."""

    def __init__(self, link: Link, stop_requested: StopRequested) -> None:
        self._link = link
        self._stop_requested = stop_requested

    def exchange(
        self, plan: RoundPlan, client_ids: Sequence[int], answer: Answer
    ) -> Iterator[tuple[int, bytes | ClientFailure]]:
        for result in self._link.exchange(plan, client_ids, answer):
            if self._stop_requested():
                raise Interrupted("stopped between two clients")
            yield result
