"""`fedss inspect`: what an artifact holds and what it costs, its hashes verified."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedss.api.artifacts import PAPER_EXTRACTOR_PARAMETERS, Head, Inspection, inspect
from fedss.comma_lists import numbers
from fedss.commands.export import memory_table
from fedss.commands.memory_tables import memory_tables, timeline_payload
from fedss.console import Json, arguments_as_options, log, show_result
from ondevice.contract.artifact import Artifact
from ondevice.contract.artifacts.pace import paces_of


def command(
    artifact: Annotated[Path, typer.Argument(help="The artifact directory.")],
    num_classes: Annotated[
        str, typer.Option(help="Numbers of classes n to show the head's share for.")
    ] = "1000,10000,100000",
    width: Annotated[
        int | None,
        typer.Option(
            min=1, help="Sampled classes |S_k| of a client.", show_default="170, or none without a table"
        ),
    ] = None,
    micro_batches: Annotated[
        str | None,
        typer.Option(help="Lower again for these, and measure: what would they need? Takes a while."),
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="Widths to measure them at; --width and the largest if not given.")
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", help="What an ExecuTorch step holds in memory while it runs, and what makes its peak."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run the golden step on every runtime here.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Files, operators, parameters and the head's share of them, memory, bytes per client and round."""
    with arguments_as_options():
        found = inspect(
            artifact,
            num_classes=numbers("--num-classes", num_classes),
            width=width,
            micro_batches=None if micro_batches is None else numbers("--micro-batches", micro_batches),
            widths=None if widths is None else numbers("--widths", widths),
            check=check,
            timeline=memory,
            on_note=log.print,
        )
    payload = _payload(found)
    over_time = [] if found.timeline is None else [memory_tables(found.timeline)]
    show_result(as_json, payload, Group(*_tables(found, payload), *over_time))


def _payload(found: Inspection) -> dict[str, Any]:
    artifact, manifest = found.artifact, found.artifact.manifest
    return {
        "artifact": str(artifact.directory),
        "artifact_sha256": artifact.sha256,
        "hashes_verified": True,  # open_artifact raises otherwise
        "spec": asdict(manifest.spec),
        "signature": manifest.signature.to_document(),
        "bounds": dict(manifest.bounds),
        "micro_batch": artifact.micro_batch,
        "max_width": artifact.max_width,
        "runtimes": list(manifest.runtimes),
        "parameters": sum(parameter.size for parameter in manifest.parameters),
        "trainable_parameters": sum(
            parameter.size for parameter in manifest.parameters if parameter.trainable
        ),
        "files": {name: asdict(entry) for name, entry in manifest.files.items()},
        "operators": manifest.operators,
        "memory": [asdict(figure) for figure in found.memory],
        **({} if found.timeline is None else {"memory_timeline": timeline_payload(found.timeline)}),
        "parity": {runtime: asdict(parity) for runtime, parity in manifest.parity.items()},
        "heads": [_head_payload(head) for head in found.heads],
        "provenance": manifest.provenance,
    }


def _head_payload(head: Head) -> dict[str, Any]:
    return {
        "num_classes": head.num_classes,
        "head_parameters": head.parameters,
        "head_share": head.share,
        "width": head.width,
        "bytes_per_round": {**asdict(head.sampled), "total": head.sampled.total},
        "full_softmax_bytes_per_round": {**asdict(head.full), "total": head.full.total},
    }


def _tables(found: Inspection, payload: Mapping[str, Any]) -> list[Table]:
    artifact, spec = found.artifact, found.artifact.spec
    summary = Table(title=Text(str(artifact.directory)), show_header=False)
    summary.add_column()
    summary.add_column(overflow="fold")  # a hash cut short would be of no use
    summary.add_row("SHA-256", f"{artifact.sha256} (every file verified)")
    shape = " x ".join(map(str, spec.image_shape))
    summary.add_row(
        "step",
        f"{spec.architecture}, {shape}, d = {spec.embedding_dim}, {spec.logits} logits, trains {spec.train}",
    )
    bounds = ", ".join(f"{symbol} up to {most}" for symbol, most in artifact.bounds.items())
    summary.add_row("bounds", f"{bounds}  (b: examples of one step)")
    summary.add_row(
        "parameters",
        f"{payload['parameters']:,} in the extractor, {payload['trainable_parameters']:,} of them learn",
    )
    paces = paces_of(artifact.manifest)
    for runtime, result in artifact.manifest.parity.items():
        pace = f"; {paces[runtime].explain()}" if runtime in paces else ""
        summary.add_row(
            runtime, f"worst relative gradient error {result.worst_relative_error:.1e} when it was made{pace}"
        )
    operators = Table("program", "operators, how often", title="operators")
    for name, histogram in artifact.manifest.operators.items():
        operators.add_row(name, ", ".join(f"{operator} {count}" for operator, count in histogram.items()))
    shares = Table(
        "classes n",
        "head parameters",
        "share",
        "MB per client and round",
        "full softmax",
        title=f"|S_k| = {found.heads[0].width}",
        caption=f"The shares in section 4.3 of the paper fit an extractor of {PAPER_EXTRACTOR_PARAMETERS / 1e6:.2f} M "
        f"parameters; this one has {payload['parameters'] / 1e6:.2f} M.",
    )
    for head in found.heads:
        cells = (f"{head.num_classes:,}", f"{head.parameters:,}", f"{head.share:.1%}")
        shares.add_row(*cells, f"{head.sampled.total / 1e6:.2f}", f"{head.full.total / 1e6:.2f}")
    return [summary, _signature_table(artifact), operators, memory_table(found.memory), shares]


def _signature_table(artifact: Artifact) -> Table:
    """What goes into a step, and what comes out; the dense parameters, of which there may be hundreds, in one row."""
    table = Table("array", "role", "type", "shape", title="signature")
    dense = artifact.signature.dense_shapes
    if dense:
        numbers_in_all = sum(math.prod(shape) for shape in dense.values())
        table.add_row(f"{len(dense)} parameters", "dense", "float32", f"{numbers_in_all:,} in all")
    for spec in artifact.signature.data:
        table.add_row(spec.name, spec.role, spec.dtype, " x ".join(map(str, spec.shape)))
    table.add_row("loss", "output", "float32", "1")
    table.add_row(f"{len(artifact.signature.trained)} gradients", "output", "float32", "as what is trained")
    return table
