"""`fedss analyse partition-sum`: how near the sum over a client's sample comes to that over all rows, by how rows are found.

For every place of the clients' examples that predicts something, on the model that a run of `nearest` has saved,

    share = Σ_{j in the sample} exp(o_j + adjust_j) / Σ_j exp(o_j)

A mean of 1 is no bias.  Uniform draws have that, and vary; rows found near the data lack what was left out, and vary less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.console import Json, UsageError, progress
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.reporting.chart_style import Canvas, Chart, colour_of
from ondevice.client.embedding import embed_places
from ondevice.client.samplers import SAMPLERS
from ondevice.client.samplers.sampling import ADJUST, SamplingView, numbers_of
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.messages.envelope import Envelope
from ondevice.contract.messages.lookup import Lookup, lookup_to_bytes
from ondevice.contract.vocabulary import (
    COLUMNS,
    ExampleSet,
    FloatArray,
    IntArray,
    LocalTraining,
    RoundPlan,
    Rows,
)
from ondevice.model.objectives.sampled_softmax import class_logits
from server_sim.metrics.top1 import num_special_of
from server_sim.runs.records import read_run
from server_sim.runs.trained_model import TrainedModel, open_trained
from server_sim.schemes.fedss import FedSS
from server_sim.schemes.fedss_words import FedSSWords
from server_sim.schemes.nearest import Nearest
from server_sim.server.row_index import RowIndex

NAME = "partition-sum"
_PLACES = 256
"""Of a client: more say little more, and each has a logit per row."""


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run of the scheme nearest: model and data.")
    ],
    clients: Annotated[
        int, typer.Option(min=1, help="Clients to average over, drawn by the run's seed.")
    ] = 20,
    cache: Cache = DEFAULT_CACHE,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What the sum over a sample is of the sum over all rows: by hash tables, by exact search, by uniform draws.

    [bold]Example[/]

      fedss simulate chitchat-simhash
      fedss analyse partition-sum runs/chitchat-simhash
    """
    model = open_trained(read_run(run), cache)
    if not isinstance(model.run.experiment.scheme, Nearest):
        raise UsageError(
            f"{run} is a run of the scheme {model.run.experiment.scheme.name}; expected nearest, whose sample is looked at"
        )
    drawn = np.random.default_rng(model.run.experiment.seed).permutation(model.population.client_ids)
    shares: dict[str, list[FloatArray]] = {}
    with progress("clients") as advance:
        proposals = proposals_of(model)
        for done, client_id in enumerate(drawn[:clients], 1):
            for label, share in shares_of(model, proposals, int(client_id)):
                shares.setdefault(label, []).append(share)
            advance(done, min(clients, len(drawn)))
    publish(
        shares_by_proposal({label: np.concatenate(found) for label, found in shares.items()}),
        NAME,
        out,
        as_json,
    )


@dataclass(frozen=True)
class Proposal:
    """A way to find rows, with as many beside a client's own as the run has."""

    label: str
    sampler: Choice
    index: RowIndex | None = None


def proposals_of(model: TrainedModel) -> list[Proposal]:
    scheme = model.run.experiment.scheme
    assert isinstance(scheme, Nearest)
    exact = scheme.model_copy(update={"search": "exact", "norm_bound": scheme.norm_bound or 1.0})
    uniform = (FedSSWords if scheme.of_words else FedSS)(num_negatives=scheme.num_negatives)
    return [
        Proposal("as the run", scheme.sampler(), scheme.open_index(model.state)),
        Proposal("exact inner products", exact.sampler(), exact.open_index(model.state)),
        Proposal("uniform", uniform.sampler()),
    ]


@dataclass(frozen=True)
class ServerAtHand:
    """A sampler's questions, answered from the saved model."""

    model: TrainedModel
    embedded: FloatArray
    index: RowIndex | None

    @property
    def dim(self) -> int:
        return self.model.state.tables[COLUMNS].dim

    def embeddings(self, ids: IntArray) -> FloatArray:  # noqa: ARG002 - the model has all rows
        return self.embedded

    def look_up(self, lookup: Lookup) -> Rows:
        assert self.index is not None
        envelope = Envelope(self.model.state.round_index, 0)
        ids = self.index.find(envelope, lookup_to_bytes(envelope, lookup))
        return Rows(ids, self.model.columns(ids))


def shares_of(
    model: TrainedModel, proposals: Sequence[Proposal], client_id: int
) -> list[tuple[str, FloatArray]]:
    """Of one client: by every proposal, the share at each of its places."""
    examples = model.population.client_examples(client_id)

    def read_rows(table: str, ids: IntArray) -> FloatArray:
        return model.state.tables[table].read(ids, model.state.round_index)

    embedded = embed_places(model.backend, model.state.dense, examples, read_rows)
    sums = np.exp(_logits(model, embedded[:_PLACES])).astype(np.float64)
    sums[:, : num_special_of(examples)] = 0
    found = []
    for proposal in proposals:
        view = _view(model, proposal, examples, client_id, embedded)
        sample = chosen(SAMPLERS, proposal.sampler, "sampler").draw(view)
        counted = np.exp(sample.sides[ADJUST].astype(np.float64))
        found.append((proposal.label, (sums[:, sample.ids[COLUMNS]] @ counted) / sums.sum(1)))
    return found


def _logits(model: TrainedModel, embedded: FloatArray) -> FloatArray:
    rows = model.columns(np.arange(model.state.tables[COLUMNS].num_rows))
    kind = model.run.experiment.model.logits
    logits: FloatArray = class_logits(torch.from_numpy(embedded), torch.from_numpy(rows), kind).numpy()
    return logits


def _view(
    model: TrainedModel, proposal: Proposal, examples: ExampleSet, client_id: int, embedded: FloatArray
) -> SamplingView:
    plan = RoundPlan(
        round_index=model.state.round_index,
        table_sizes=model.state.table_sizes,
        sampler=proposal.sampler,
        weighting=Choice("uniform"),
        transforms=(),
        local_training=LocalTraining(1, 1, 0.0),
    )
    return SamplingView(
        plan,
        np.asarray(examples.labels),
        model.population.private_seed(client_id),
        numbers_of(examples, np.arange(len(examples))),
        ServerAtHand(model, embedded, proposal.index),
    )


def shares_by_proposal(shares: dict[str, FloatArray]) -> Finding:
    rows: list[Row] = [
        {
            "found": label,
            "mean": float(found.mean()),
            "deviation": float(found.std()),
            "low": float(np.quantile(found, 0.05)),
            "high": float(np.quantile(found, 0.95)),
            "places": len(found),
        }
        for label, found in shares.items()
    ]
    return Finding(
        title="The sum over a sample, as a share of that over all rows",
        headers=["rows found", "mean", "deviation", "5 %", "95 %", "places"],
        cells=[
            [
                row["found"],
                *(f"{row[name]:.3f}" for name in ("mean", "deviation", "low", "high")),
                str(row["places"]),
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(shares)],
        words="A mean of 1 is no bias: what is below it was left out.  The deviation is that over places.",
    )


def _chart(shares: dict[str, FloatArray]) -> Chart:
    with Canvas(NAME, 1, height=2.2 + 0.4 * len(shares)) as canvas:
        (panel,) = canvas.panels
        boxes = panel.boxplot(
            list(shares.values()),
            tick_labels=list(shares),
            whis=(5, 95),
            showfliers=False,
            orientation="horizontal",
        )
        for number, median in enumerate(boxes["medians"]):
            median.set_color(colour_of(number))
        panel.axvline(1, color="0.6", linewidth=1)
        panel.set_xlabel("sum over the sample / sum over all rows")
        panel.invert_yaxis()
        return canvas.finish(
            "Shares of the sum over all rows, 5 to 95 % of the places, by how rows are found."
        )
