"""`fedss export`: the training step as an artifact that phones can train with."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedss.api.artifacts import DEFAULTS, export
from fedss.comma_lists import names
from fedss.console import Json, UsageError, log, show_result
from fedss.termination import unwinding_on_sigterm
from ondevice.backends.opening import RUNTIMES
from ondevice.contract.artifact import MEGABYTE, Artifact
from ondevice.contract.manifest import MemoryFigure
from ondevice.contract.vocabulary import LogitKind, StepSpec, TrainScope
from ondevice.model.extractors import ARCHITECTURES


def command(
    out: Annotated[Path, typer.Option("--out", help="The artifact directory to make.")],
    arch: Annotated[
        str, typer.Option(help=f"The extractor: {', '.join(ARCHITECTURES)}.")
    ] = "mobilenet_v3_large",
    embedding_dim: Annotated[
        int, typer.Option(help="Entries of an embedding, and of a class's column.")
    ] = 64,
    image_size: Annotated[int, typer.Option(help="Height and width of the images.")] = 224,
    channels: Annotated[int, typer.Option(help="Channels of the images: 3, or 1 for grey.")] = 3,
    logits: Annotated[
        str, typer.Option(help="cosine (scaled by 20), or dot (a column then carries a bias).")
    ] = "cosine",
    train: Annotated[
        str, typer.Option(help="What learns: all; last-two (embedding and columns); head (columns).")
    ] = "all",
    runtimes: Annotated[str, typer.Option(help=f"Some of {', '.join(RUNTIMES)}.")] = ",".join(
        DEFAULTS.runtimes
    ),
    micro_batch: Annotated[
        int, typer.Option(help="Examples of one step; larger batches are split, exactly.")
    ] = 4,
    max_width: Annotated[int, typer.Option(help="The most classes that a client may sample.")] = 1024,
    memory_budget: Annotated[
        int | None,
        typer.Option(metavar="MB", help="Pick the largest micro-batch whose process stays within this."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Start from safetensors or a torch checkpoint; torchvision's and timm's MobileNetV3 fit."
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
            arch,
            embedding_dim,
            (channels, image_size, image_size),
            logits=cast(LogitKind, logits),
            train=cast(TrainScope, train),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    with unwinding_on_sigterm():
        artifact = export(
            spec,
            out=out,
            runtimes=names("--runtimes", runtimes),
            micro_batch=micro_batch,
            max_width=max_width,
            memory_budget_mb=memory_budget,
            weights=weights,
            seed=seed,
            overwrite=overwrite,
            on_note=lambda what: log.print(what, style="dim"),
        )
    show_result(as_json, _payload(artifact, time.monotonic() - started), _tables(artifact))


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
    parity = Table("runtime", "worst relative gradient error", "in", "parity")
    for runtime, result in manifest.parity.items():
        verdict = Text("passed", "green") if result.passed else Text("failed", "red")
        parity.add_row(runtime, f"{result.worst_relative_error:.1e}", result.worst_tensor, verdict)
    return Group(files, memory_table(manifest.memory), parity)


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
