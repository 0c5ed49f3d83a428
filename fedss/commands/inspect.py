"""`fedss inspect`: what an artifact holds and what it costs, its hashes verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from export.cost.communication import PAPER_EXTRACTOR_PARAMETERS, round_bytes
from export.cost.memory import memory_table as measure_memory
from fedss.comma_lists import numbers
from fedss.commands.export import memory_table
from fedss.console import CheckFailed, Json, UsageError, log, show_result
from ondevice.backends.opening import WITHOUT_TORCH, Runtime, open_backend
from ondevice.contract.artifact import Artifact, MemoryFigure, open_artifact
from ondevice.contract.golden_step import SLACK, check_golden


def command(
    artifact: Annotated[Path, typer.Argument(help="The artifact directory.")],
    num_classes: Annotated[
        str, typer.Option(help="Numbers of classes n to show the head's share for.")
    ] = "1000,10000,100000",
    width: Annotated[int, typer.Option(min=1, help="Sampled classes |S_k| of a client.")] = 170,
    micro_batches: Annotated[
        str | None,
        typer.Option(help="Lower again for these, and measure: what would they need? Takes a while."),
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="Widths to measure them at; --width and the largest if not given.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the golden step on every runtime here.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Files, operators, parameters and the head's share of them, memory, bytes per client and round."""
    opened = open_artifact(artifact)
    if width > opened.max_width:
        raise UsageError(f"--width is {width}; {artifact} takes at most {opened.max_width} classes")
    measured_widths = [width, opened.max_width] if widths is None else numbers("--widths", widths)
    if max(measured_widths) > opened.max_width:
        raise UsageError(
            f"--widths has {max(measured_widths)}; {artifact} takes at most {opened.max_width} classes"
        )
    if check:
        _check_runtimes(opened)
    memory = opened.manifest.memory
    if micro_batches is not None or widths is not None:
        tried = [opened.micro_batch] if micro_batches is None else numbers("--micro-batches", micro_batches)
        runtimes = cast(
            Sequence[Runtime], [name for name in opened.manifest.runtimes if name in WITHOUT_TORCH]
        )
        memory = tuple(measure_memory(opened, runtimes, tried, sorted(set(measured_widths)), log.print))
    heads = [_head(opened, classes, width) for classes in numbers("--num-classes", num_classes)]
    payload = _payload(opened, heads, memory)
    show_result(as_json, payload, Group(*_tables(opened, payload, heads, memory)))


def _check_runtimes(artifact: Artifact) -> None:
    """An artifact proves itself wherever it lands: other processors, other builds of a runtime."""
    golden = artifact.golden()
    for runtime in artifact.manifest.runtimes:
        comparison = check_golden(
            open_backend(artifact, runtime), artifact.initial(), golden, SLACK.get(runtime, 1.0)
        )
        log.print(f"{runtime}: {comparison.explain()}")
        if not comparison.passed:
            raise CheckFailed(
                f"{runtime} does not reproduce the golden step of {artifact.directory}: {comparison.explain()}"
            )


def _head(artifact: Artifact, num_classes: int, width: int) -> dict[str, Any]:
    """The classification layer beside the extractor (Figure 9 of the paper), and what sampling it saves on the way."""
    extractor = sum(parameter.size for parameter in artifact.manifest.parameters)
    head = num_classes * artifact.spec.column_dim
    sampled = round_bytes(artifact.parameter_shapes, artifact.spec.column_dim, min(width, num_classes))
    full = round_bytes(artifact.parameter_shapes, artifact.spec.column_dim, num_classes)
    return {
        "num_classes": num_classes,
        "head_parameters": head,
        "head_share": head / (head + extractor),
        "width": min(width, num_classes),
        "bytes_per_round": {**asdict(sampled), "total": sampled.total},
        "full_softmax_bytes_per_round": {**asdict(full), "total": full.total},
    }


def _payload(
    artifact: Artifact, heads: list[dict[str, Any]], memory: Sequence[MemoryFigure]
) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "artifact": str(artifact.directory),
        "artifact_sha256": artifact.sha256,
        "hashes_verified": True,  # open_artifact raises otherwise
        "spec": asdict(manifest.spec),
        "micro_batch": manifest.micro_batch,
        "max_width": manifest.max_width,
        "runtimes": list(manifest.runtimes),
        "parameters": sum(parameter.size for parameter in manifest.parameters),
        "trainable_parameters": sum(
            parameter.size for parameter in manifest.parameters if parameter.trainable
        ),
        "files": {name: asdict(entry) for name, entry in manifest.files.items()},
        "operators": manifest.operators,
        "memory": [asdict(figure) for figure in memory],
        "parity": {runtime: asdict(parity) for runtime, parity in manifest.parity.items()},
        "heads": heads,
        "provenance": manifest.provenance,
    }


def _tables(
    artifact: Artifact,
    payload: Mapping[str, Any],
    heads: list[dict[str, Any]],
    memory: tuple[MemoryFigure, ...],
) -> list[Table]:
    spec = artifact.spec
    summary = Table(title=escape(str(artifact.directory)), show_header=False)
    summary.add_column()
    summary.add_column(overflow="fold")  # a hash cut short would be of no use
    summary.add_row("SHA-256", f"{artifact.sha256} (every file verified)")
    shape = " x ".join(map(str, spec.image_shape))
    summary.add_row(
        "step",
        f"{spec.architecture}, {shape}, d = {spec.embedding_dim}, {spec.logits} logits, trains {spec.train}",
    )
    summary.add_row("sizes", f"micro-batch {artifact.micro_batch}, up to {artifact.max_width} classes")
    summary.add_row(
        "parameters",
        f"{payload['parameters']:,} in the extractor, {payload['trainable_parameters']:,} of them learn",
    )
    for runtime, result in artifact.manifest.parity.items():
        summary.add_row(
            runtime, f"worst relative gradient error {result.worst_relative_error:.1e} when it was made"
        )
    operators = Table("program", "operators, how often", title="operators")
    for name, histogram in artifact.manifest.operators.items():
        operators.add_row(name, ", ".join(f"{operator} {count}" for operator, count in histogram.items()))
    shares = Table(
        "classes n",
        "head parameters",
        "share",
        "MB a client and round",
        "full softmax",
        title=f"|S_k| = {heads[0]['width']}",
        caption=f"The shares in section 4.3 of the paper fit an extractor of {PAPER_EXTRACTOR_PARAMETERS / 1e6:.2f} M "
        f"parameters; this one has {payload['parameters'] / 1e6:.2f} M.",
    )
    for head in heads:
        totals = [head[key]["total"] / 1e6 for key in ("bytes_per_round", "full_softmax_bytes_per_round")]
        cells = (f"{head['num_classes']:,}", f"{head['head_parameters']:,}", f"{head['head_share']:.1%}")
        shares.add_row(*cells, f"{totals[0]:.2f}", f"{totals[1]:.2f}")
    return [summary, operators, memory_table(memory), shares]
