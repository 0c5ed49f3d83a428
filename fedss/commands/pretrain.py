"""`fedss pretrain`: make the extractor that experiments start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedss.api.populations import open_population
from fedss.api.pretraining import pretrain
from fedss.console import Json, progress, show_result
from fedss.locations import DEFAULT_CACHE, Cache


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
        open_population(population, cache=cache, on_progress=advance)
    with progress("pretraining") as advance:
        made = pretrain(
            population,
            out=out,
            architecture=architecture,
            embedding_dim=embedding_dim,
            steps=steps,
            seed=seed,
            cache=cache,
            on_step=lambda done, _: advance(done, steps),
        )
    payload = {"out": str(out), "steps": steps, "loss": made.loss, "num_classes": made.num_classes}
    words = f"wrote {out}: {steps} steps on {made.num_classes} classes, loss {made.loss:.2f}"
    show_result(as_json, payload, words)
