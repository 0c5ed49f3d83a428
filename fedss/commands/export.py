"""`fedss export`: the training step as an artifact that phones can train with."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedss.api.artifacts import DEFAULTS, export
from fedss.comma_lists import names, numbers
from fedss.console import Json, UsageError, log, show_result
from fedss.termination import unwinding_on_sigterm
from ondevice.backends.opening import RUNTIMES
from ondevice.contract.artifact import MEGABYTE, Artifact
from ondevice.contract.artifacts.manifest import MemoryFigure
from ondevice.contract.artifacts.pace import Pace, paces_of
from ondevice.contract.vocabulary import BatchNormPolicy, LogitKind, Randomness, StepSpec
from ondevice.model.extractors import ARCHITECTURES
from ondevice.model.extractors.foreign import FORMS


def command(
    out: Annotated[Path, typer.Option("--out", help="The artifact directory to make.")],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "--arch",
            help=f"The network: {', '.join(ARCHITECTURES)}; or anybody's, by {FORMS}. It gives features of images.",
        ),
    ] = "mobilenet_v3_large",
    model_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A keyword argument for its builder, in JSON; may be repeated."
        ),
    ] = None,
    batch_norm: Annotated[
        str | None,
        typer.Option(
            help="frozen (statistics are constants, scale and bias learn) or group (GroupNorm instead). "
            "Not given: frozen where weights were trained somewhere, group for fresh ones."
        ),
    ] = None,
    randomness: Annotated[
        str,
        typer.Option(
            help="Dropout, stochastic depth and their like: off, or input (decided by noise that the client draws for "
            "every example; the step takes it as arrays)."
        ),
    ] = "off",
    embedding_dim: Annotated[
        int, typer.Option(help="Entries of an embedding, and of a class's column.")
    ] = 64,
    image_size: Annotated[int, typer.Option(help="Height and width of the images.")] = 224,
    channels: Annotated[int, typer.Option(help="Channels of the images: 3, or 1 for grey.")] = 3,
    objective: Annotated[
        str,
        typer.Option(
            help="The loss: sampled_softmax; next_word for a network with an output per place; or anybody's, by "
            "package.module:Class or path/to/file.py:Class."
        ),
    ] = "sampled_softmax",
    logits: Annotated[
        str, typer.Option(help="cosine (scaled by 20), or dot (a column then carries a bias).")
    ] = "cosine",
    train: Annotated[
        str,
        typer.Option(
            help="What learns beside the tables: all, last-two (the embedding), head (nothing), norms-and-biases, "
            "'last-blocks N', lora:R (adapters of rank R), or patterns of names: 'blocks.5.*,*.bias'."
        ),
    ] = "all",
    runtimes: Annotated[str, typer.Option(help=f"Some of {', '.join(RUNTIMES)}.")] = ",".join(
        DEFAULTS.runtimes
    ),
    micro_batch: Annotated[
        int, typer.Option(help="Examples of one step; larger batches are split, exactly.")
    ] = 4,
    max_width: Annotated[int, typer.Option(help="The most classes that a client may sample.")] = 1024,
    lengths: Annotated[
        str,
        typer.Option(
            help="Of texts, ascending, the network's own last: '8,20' makes a program each, and a micro-batch takes the "
            "shortest that holds its longest text. Not given: the network's own alone."
        ),
    ] = "",
    memory_budget: Annotated[
        int | None,
        typer.Option(metavar="MB", help="Pick the largest micro-batch whose process stays within this."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Start from safetensors or a torch checkpoint, in the names of the network itself; "
            "torchvision's and timm's MobileNets fit ours."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of fresh weights and of the golden step.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the artifact that is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export the training step; check it on every runtime; publish it only if it is right."""
    started = time.monotonic()
    try:
        spec = StepSpec(
            embedding_dim=embedding_dim,
            image_shape=(channels, image_size, image_size),
            objective=objective,
            logits=cast(LogitKind, logits),
            train=train,
            randomness=cast(Randomness, randomness),
        )
        if batch_norm is not None and batch_norm not in get_args(BatchNormPolicy):
            raise ValueError(f"--batch-norm is {batch_norm!r}; expected frozen or group")
    except ValueError as error:
        raise UsageError(str(error)) from error
    with unwinding_on_sigterm():
        artifact = export(
            model,
            out=out,
            spec=spec,
            arguments=_arguments(model_arg or []),
            batch_norm=cast(BatchNormPolicy | None, batch_norm),
            runtimes=names("--runtimes", runtimes),
            micro_batch=micro_batch,
            max_width=max_width,
            lengths=numbers("--lengths", lengths) if lengths else (),
            memory_budget_mb=memory_budget,
            weights=weights,
            seed=seed,
            overwrite=overwrite,
            on_note=lambda what: log.print(what, style="dim"),
        )
    show_result(as_json, _payload(artifact, time.monotonic() - started), _tables(artifact))


def _arguments(texts: list[str]) -> dict[str, Any]:
    """`width=0.5`: JSON where it is, a word where it is not."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in found:
            raise UsageError(f"--model-arg is {text!r}; expected NAME=VALUE, every name once")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _payload(artifact: Artifact, seconds: float) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "artifact": str(artifact.directory),
        "artifact_sha256": artifact.sha256,
        "micro_batch": artifact.micro_batch,
        "max_width": artifact.max_width,
        "files": {name: asdict(entry) for name, entry in manifest.files.items()},
        "operators": manifest.operators,
        "memory": [asdict(figure) for figure in manifest.memory],
        "parity": {runtime: asdict(parity) for runtime, parity in manifest.parity.items()},
        "seconds": round(seconds, 1),
    }


def _tables(artifact: Artifact) -> RenderableType:
    manifest = artifact.manifest
    files = Table(
        "file", "size", "operators", title=f"{artifact.directory}: micro-batch {artifact.micro_batch}"
    )
    for name, entry in manifest.files.items():
        count = sum(manifest.operators.get(name, {}).values())
        files.add_row(name, f"{entry.size / 1e6:.2f} MB", str(count or ""))
    parity = Table("runtime", "worst relative gradient error", "in", "parity", "step")
    paces = paces_of(manifest)
    for runtime, result in manifest.parity.items():
        verdict = Text("passed", "green") if result.passed else Text("failed", "red")
        error = f"{result.worst_relative_error:.1e}"
        parity.add_row(runtime, error, result.worst_tensor, verdict, _pace(paces.get(runtime)))
    return Group(files, memory_table(manifest.memory), parity)


def _pace(pace: Pace | None) -> Text:
    return Text("") if pace is None else Text(pace.explain(), "yellow" if pace.slow else "")


def memory_table(figures: tuple[MemoryFigure, ...]) -> Table:
    """Planned and measured memory, as `fedss inspect` shows it too."""
    table = Table("runtime", "micro-batch", "width", "planned", "measured process peak", title="memory")
    for figure in figures:
        planned, peak = (
            "" if size is None else f"{size / MEGABYTE:.0f} MB"
            for size in (figure.planned_bytes, figure.peak_bytes)
        )
        table.add_row(figure.runtime, str(figure.micro_batch), str(figure.width), planned, peak)
    return table
