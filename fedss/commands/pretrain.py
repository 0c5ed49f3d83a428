"""`fedss pretrain`: make the extractor that experiments start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedss.console import Json, progress, show_result
from fedss.locations import DEFAULT_CACHE, Cache
from ondevice.contract.vocabulary import StepSpec
from server_sim.data.population import open_population
from server_sim.experiment import DataSettings
from server_sim.preparation import population_path
from server_sim.pretraining import pretrain


def command(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("pretrained.safetensors"),
    population: Annotated[
        str, typer.Option(help="A glyphs preset, or the folder of a population.")
    ] = "glyphs-pretrain",
    architecture: Annotated[str, typer.Option(help="The extractor.")] = "three_convolutions",
    embedding_dim: Annotated[int, typer.Option(min=1, help="d.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps of 32 examples.")] = 3000,
    seed: Annotated[int, typer.Option(help="First weights and order of the examples.")] = 0,
    cache: Cache = DEFAULT_CACHE,
    as_json: Json = False,
) -> None:
    """Train an extractor centrally on characters outside the task, as the paper starts from ImageNet.

    The result goes into an experiment as [bold]--set model.pretrained=FILE[/].  The one that the glyphs experiments start
    from comes with the package; this command, with its defaults, made it.
    """
    with progress(f"data {population}") as advance:
        opened = open_population(population_path(DataSettings(population=population), cache, advance))
    spec = StepSpec(architecture, embedding_dim, opened.image_shape)
    last = {"loss": float("nan")}
    with progress("pretraining") as advance:

        def on_step(done: int, loss: float) -> None:
            last["loss"] = loss
            advance(done, steps)

        pretrain(opened, spec, steps, seed, out, on_step)
    payload = {"out": str(out), "steps": steps, "loss": last["loss"], "num_classes": opened.num_classes}
    show_result(
        as_json,
        payload,
        f"wrote {out}: {steps} steps on {opened.num_classes} classes, loss {last['loss']:.2f}",
    )
