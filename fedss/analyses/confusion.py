"""`fedss analyse confusion`: one client's classes as two models see them, as in Figure 7 of the FedSS paper.

Every training example of the client is classified among the client's own classes P_k.  NegOnly separates P_k from all other
classes and nothing inside it, so that its columns fall together: the mean cosine between them says how far.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedss.analyses.finding import Finding, Out, Row, publish
from fedss.console import Json, UsageError
from fedss.locations import DEFAULT_CACHE, Cache
from fedss.reporting.chart_style import Canvas, Chart
from ondevice.contract.vocabulary import FloatArray
from server_sim.metrics.rows import unit_rows
from server_sim.runs.records import read_run
from server_sim.runs.trained_model import TrainedModel, open_trained

NAME = "confusion"


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs on the same data.")],
    client: Annotated[int, typer.Option(min=0, help="Whose classes.")] = 0,
    cache: Cache = DEFAULT_CACHE,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A client's examples classified among its own classes, by the model of each run.

    [bold]Example[/]

      fedss analyse confusion runs/fedss runs/negonly --client 3
    """
    models = [open_trained(read_run(path), cache) for path in runs]
    publish(confusion_of_client(models, client), NAME, out, as_json)


def confusion_of_client(models: Sequence[TrainedModel], client: int) -> Finding:
    count = len(models[0].population.client_ids)
    if client >= count or any(
        model.population.directory != models[0].population.directory for model in models
    ):
        raise UsageError(f"--client is {client}; expected one of {count}, and runs on the same data")
    rows: list[Row] = []
    matrices: list[tuple[str, FloatArray]] = []
    for model in models:
        matrix, cosine = _confusion(model, client)
        label = model.run.label
        matrices.append((label, matrix))
        held = len(matrix)
        rows.append(
            {
                "label": label,
                "client": client,
                "classes": held,
                "right": float(np.trace(matrix) / held),
                "mean_cosine": cosine,
                "matrix": np.round(matrix, 4).tolist(),
            }
        )
    return Finding(
        title=f"The classes of client {client}, as the models see them",
        headers=["run", "classes", "right (%)", "mean cosine"],
        cells=[
            [
                row["label"],
                str(row["classes"]),
                f"{100 * row['right']:.1f}",
                f"{row['mean_cosine']:.2f}",
            ]
            for row in rows
        ],
        rows=rows,
        charts=[_chart(matrices)],
        words="A row is a class of the client, a column what its training examples are taken for among the client's "
        "classes.  Right: mean over the classes.  Mean cosine: between the columns of W of two of its classes; near 1 "
        "they have fallen together.",
    )


def _confusion(model: TrainedModel, client: int) -> tuple[FloatArray, float]:
    """[C, C] shares of each class's examples, and the mean cosine between the columns of two classes."""
    examples = model.population.client_examples(client)
    classes, own = np.unique(examples.labels, return_inverse=True)
    columns = model.columns(classes)
    if model.run.experiment.model.logits == "dot":
        weights, bias = columns[:, :-1], columns[:, -1]
    else:
        weights, bias = unit_rows(columns), np.zeros(len(columns), np.float32)
    predicted = (model.embeddings(examples) @ weights.T + bias).argmax(axis=1)
    matrix = np.zeros((len(classes), len(classes)), np.float32)
    np.add.at(matrix, (own, predicted), 1)
    directions = unit_rows(weights)
    pairs = len(classes) * (len(classes) - 1)
    total = float((directions @ directions.T).sum()) - len(classes)
    return matrix / matrix.sum(axis=1, keepdims=True), total / pairs if pairs else 1.0


def _chart(matrices: Sequence[tuple[str, FloatArray]]) -> Chart:
    with Canvas(NAME, len(matrices), height=4.6) as canvas:
        for panel, (label, matrix) in zip(canvas.panels, matrices, strict=True):
            panel.imshow(matrix, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            panel.set_title(label)
            panel.set_xlabel("taken for")
            panel.grid(visible=False)
        canvas.panels[0].set_ylabel("class of the client")
        return canvas.finish(
            "Shares of each class's examples, white 0 and dark 1; a model that tells them apart has a diagonal."
        )
