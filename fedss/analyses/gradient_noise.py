"""`fedss analyse gradient-noise`: how far FedSS's mean is from that of all classes, as in Figure 8 of the FedSS paper.

For a batch D of 32 examples that all K clients of a round hold, with negatives of their own,

    noise = E_D ‖ḡ_FedAvg − ḡ_FedSS‖ / ‖ḡ_FedAvg‖

where ḡ is the mean of the clients' model changes after one local step, and FedAvg's clients hold every class.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.comma_lists import numbers
from fedss.console import Json, UsageError, progress
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.reporting.chart_style import Canvas, Chart, colour_of, plain_numbers
from ondevice.client.client import Client
from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import COLUMNS, ExampleSet, FloatArray, LocalTraining, RoundPlan
from server_sim.engines.in_process import InProcessLink
from server_sim.one_round import RoundRules, run_round
from server_sim.runs.records import read_run
from server_sim.runs.trained_model import TrainedModel, open_trained
from server_sim.schemes.fedss import FedSS
from server_sim.schemes.full_softmax import FullSoftmax
from server_sim.server.aggregation import AggregatedRows, AggregatedUpdate, Aggregator
from server_sim.server.optimizers import FedAvg
from server_sim.server.state import ServerState

NAME = "gradient-noise"
_BATCH = 32


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run: whose model and data.")],
    negatives: Annotated[str, typer.Option(help="Sizes of N_k.")] = "5,10,20,40,80,160,320,640",
    batches: Annotated[int, typer.Option(min=1, help="Batches D to average over.")] = 10,
    clients: Annotated[
        int, typer.Option(min=1, help="Clients of a round, each with negatives of its own.")
    ] = 8,
    cache: Cache = DEFAULT_CACHE,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The difference between the round of FedSS and that of all classes, by the number of negatives.

    [bold]Example[/]

      fedss analyse gradient-noise runs/glyphs-fedss --negatives 5,20,80,320
    """
    model = open_trained(read_run(run), cache)
    widths = numbers("--negatives", negatives)
    if max(widths) > model.population.num_classes:
        raise UsageError(f"--negatives has {max(widths)}; there are {model.population.num_classes} classes")
    with progress("batches") as advance:
        difference = MeanDifference(model, clients)
        found = []
        for number in range(batches):
            found.append(difference.of_batch(number, widths))
            advance(number + 1, batches)
    publish(noise_by_negatives(widths, found), NAME, out, as_json)


class MeanDifference:
    """Rounds on a model that stays as it is."""

    def __init__(self, model: TrainedModel, num_clients: int) -> None:
        self._model = model
        self._num_clients = num_clients
        tables = {name: table.read_all(model.state.round_index) for name, table in model.state.tables.items()}
        self._state = ServerState.fresh(FedAvg(1.0), model.state.dense, tables)
        shapes = {name: values.shape for name, values in tables.items()}
        self._aggregator = Aggregator(model.state.dense.shapes, shapes, "selected")

    def of_batch(self, number: int, widths: Sequence[int]) -> list[float]:
        """For every size of N_k, the distance from all classes, as a share of that mean's length."""
        rng = np.random.default_rng([self._model.run.experiment.seed, number])
        train = self._model.population.train
        chosen = np.sort(rng.choice(len(train), min(_BATCH, len(train)), replace=False))
        features = {name: np.ascontiguousarray(feature[chosen]) for name, feature in train.features.items()}
        batch = ExampleSet(features, np.asarray(train.labels[chosen]))
        whole = self._mean(FullSoftmax().sampler(), batch, number, num_clients=1)
        return [
            float(
                np.linalg.norm(
                    self._mean(FedSS(num_negatives=width).sampler(), batch, number, self._num_clients) - whole
                )
            )
            / float(np.linalg.norm(whole))
            for width in widths
        ]

    def _mean(self, sampler: Choice, batch: ExampleSet, number: int, num_clients: int) -> FloatArray:
        """ḡ of all parameters in one row.  The server is handed a mean of nothing, so the model stays as it is."""
        state, rate = self._state, self._model.run.experiment.client.learning_rate
        plan = RoundPlan(
            round_index=state.round_index,
            table_sizes=state.table_sizes,
            sampler=sampler,
            weighting=Choice("uniform"),
            transforms=(),
            local_training=LocalTraining(1, len(batch), rate),
        )
        kept: list[FloatArray] = []

        def keep(mean: AggregatedUpdate, state: ServerState) -> AggregatedUpdate:
            whole = np.zeros((state.tables[COLUMNS].num_rows, state.tables[COLUMNS].dim), np.float32)
            rows = mean.tables[COLUMNS]
            whole[rows.ids] = rows.delta
            kept.append(np.concatenate([*(value.ravel() for value in mean.dense.values()), whole.ravel()]))
            nothing = AggregatedRows(rows.ids[:0], rows.delta[:0])
            still = {name: np.zeros_like(value) for name, value in mean.dense.items()}
            return replace(mean, dense=still, tables={COLUMNS: nothing})

        link = InProcessLink(
            lambda client: Client(client, batch, 1000 * number + client, lambda: self._model.backend)
        )
        report = run_round(
            state, plan, range(num_clients), link, self._aggregator, RoundRules(before_apply=keep)
        )
        if report.dropped:
            raise UsageError(f"a client failed: {next(iter(report.dropped.values()))}")
        return kept[0]


def noise_by_negatives(widths: Sequence[int], found: Sequence[Sequence[float]]) -> Finding:
    """`found` has a row per batch and a column per width."""
    rows: list[Row] = [
        {
            "num_negatives": width,
            "noise": statistics.fmean(batch[place] for batch in found),
            "deviation": statistics.stdev(batch[place] for batch in found) if len(found) > 1 else 0.0,
            "batches": len(found),
        }
        for place, width in enumerate(widths)
    ]
    return Finding(
        title="Gradient noise of FedSS",
        headers=["|N_k|", "noise", "deviation"],
        cells=[[str(row["num_negatives"]), f"{row['noise']:.3f}", f"{row['deviation']:.3f}"] for row in rows],
        rows=rows,
        charts=[_chart(rows)],
        words=f"Distance between the mean change of FedSS's clients and that of clients with all classes, as a share of the "
        f"latter's length, over {len(found)} batches of {_BATCH} examples.",
    )


def _chart(rows: Sequence[Row]) -> Chart:
    with Canvas(NAME, 1, height=3.6) as canvas:
        (panel,) = canvas.panels
        x, y = [row["num_negatives"] for row in rows], [row["noise"] for row in rows]
        panel.errorbar(
            x, y, yerr=[row["deviation"] for row in rows], color=colour_of(0), marker="o", capsize=3
        )
        panel.set_xscale("log")
        plain_numbers(panel.xaxis)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("sampled negatives |N_k| (log scale)")
        panel.set_title("‖ḡ of all classes − ḡ of FedSS‖ / ‖ḡ of all classes‖")
        return canvas.finish("As more negatives are sampled, FedSS's round approaches that of all classes.")
