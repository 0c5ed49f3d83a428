"""Artifacts: a training step exported for phones, looked into, and checked where it lies.

Torch is imported when something is exported and no earlier: what cannot be is refused at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from export.cost.budget import BudgetTooSmall
from export.cost.communication import PAPER_EXTRACTOR_PARAMETERS, RoundBytes, round_bytes
from export.cost.timeline import MemoryTimeline, memory_timeline
from export.proof.parity import ParityFailed
from export.recipe import ExportRecipe, check_target
from export.unsupported_operator import UnsupportedOperator
from fedss.api.callbacks import Note, unheard
from fedss.api.errors import CheckFailed, UsageError
from fedss.api.widths import widths_of
from ondevice.backends.opening import WITHOUT_TORCH, Runtime, open_backend
from ondevice.contract.artifact import Artifact, ArtifactError
from ondevice.contract.artifact import open_artifact as open_artifact_folder
from ondevice.contract.artifacts.manifest import MemoryFigure
from ondevice.contract.artifacts.program_calls import STEP_CALLS, ProgramCalls, program_calls_from_bytes
from ondevice.contract.golden_step import SLACK, check_golden, worst_of
from ondevice.contract.vocabulary import BatchNormPolicy, StepSpec
from ondevice.model.extractors import check_architecture
from ondevice.model.extractors.defaults import completed
from ondevice.model.extractors.foreign import give
from ondevice.model.named_code import UnusableCode

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "DEFAULTS",
    "PAPER_EXTRACTOR_PARAMETERS",
    "Head",
    "Inspection",
    "MemoryTimeline",
    "export",
    "inspect",
    "open_artifact",
    "program_calls",
]

DEFAULTS = ExportRecipe()
HEADS = (1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Head:
    """The classification layer beside the extractor (Figure 9 of the paper), and what sampling it saves on the way."""

    num_classes: int
    parameters: int
    share: float
    """Of all parameters."""
    width: int
    """Classes that a client samples."""
    sampled: RoundBytes
    full: RoundBytes
    """With all classes."""


@dataclass(frozen=True)
class Inspection:
    """What an artifact holds and what it costs."""

    artifact: Artifact
    heads: tuple[Head, ...]
    memory: tuple[MemoryFigure, ...]
    timeline: MemoryTimeline | None
    """What is alive when, if it was asked for."""


def export(
    model: StepSpec | str | nn.Module = DEFAULTS.spec,
    *,
    out: str | Path,
    spec: StepSpec = DEFAULTS.spec,
    arguments: Mapping[str, Any] | None = None,
    batch_norm: BatchNormPolicy | None = None,
    runtimes: Sequence[str] = DEFAULTS.runtimes,
    micro_batch: int = DEFAULTS.micro_batch,
    max_width: int = DEFAULTS.max_width,
    lengths: Sequence[int] = DEFAULTS.lengths,
    memory_budget_mb: int | None = None,
    weights: str | Path | None = None,
    seed: int = 0,
    overwrite: bool = False,
    on_note: Note = unheard,
) -> Artifact:
    """Export the training step; check it on every runtime; publish it only if it is right.

    model             a `StepSpec`; or the name of a network, or any nn.Module that gives features, with everything else
                      (sizes, logits, what learns) as `spec` has it
    arguments         keyword arguments for the builder of a network from elsewhere
    batch_norm        frozen or group; if not given, frozen where weights were trained somewhere, else group
    micro_batch       examples of one step; larger batches are split, exactly
    max_width         the most classes that a client may sample
    lengths           of texts, ascending, the last the network's own: a program each, and a micro-batch takes the
                      shortest that holds its longest text; none is the network's own alone
    memory_budget_mb  picks the largest micro-batch whose process stays within this, instead
    weights           safetensors or a torch checkpoint to start from; fresh ones of `seed` if not given

    Raises `UsageError` for what cannot be, `CheckFailed` where a runtime's gradients are wrong; nothing is left behind then.
    """
    target = Path(out)
    start = None if weights is None else Path(weights)
    try:
        recipe = ExportRecipe(
            spec=_spec(model, spec, arguments, start is not None, batch_norm),
            runtimes=cast(tuple[Runtime, ...], tuple(runtimes)),
            micro_batch=micro_batch,
            max_width=max_width,
            lengths=tuple(lengths),
            memory_budget_mb=memory_budget_mb,
            weights=start,
            seed=seed,
        )
        check_target(target, overwrite)
    except (ValueError, FileExistsError) as error:
        raise UsageError(str(error)) from error
    if start is not None and not start.is_file():
        raise ArtifactError(
            f"{start} is not a file; expected safetensors, such as a run's state.safetensors, or a torch checkpoint"
        )
    # Both import torch, which nothing before needs.
    from export.pipeline import export_artifact
    from ondevice.model.objectives import check_objective

    try:
        check_objective(recipe.spec.objective)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        return export_artifact(recipe, target, overwrite, report=on_note)
    except (FileExistsError, BudgetTooSmall, UnsupportedOperator, UnusableCode) as error:
        raise UsageError(str(error)) from error
    except ParityFailed as error:
        raise CheckFailed(str(error)) from error


def _spec(
    model: StepSpec | str | nn.Module,
    spec: StepSpec,
    arguments: Mapping[str, Any] | None,
    has_weights: bool,
    batch_norm: BatchNormPolicy | None,
) -> StepSpec:
    if isinstance(model, StepSpec):
        return model
    name = model if isinstance(model, str) else give(model)
    check_architecture(name)
    named = replace(spec, architecture=name, architecture_arguments=dict(arguments or {}))
    return completed(named, has_weights, batch_norm)


def open_artifact(path: str | Path) -> Artifact:
    """Read the manifest and check every file against it."""
    return open_artifact_folder(Path(path))


def program_calls(artifact: Artifact) -> ProgramCalls:
    """What its ExecuTorch program does, call by call."""
    if STEP_CALLS not in artifact.manifest.files:
        raise ArtifactError(
            f"{artifact.directory} has no {STEP_CALLS}, which tells operators' layers and memory: export it again, "
            "for executorch"
        )
    path = artifact.path(STEP_CALLS)
    try:
        return program_calls_from_bytes(path.read_bytes(), artifact.bounds)
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: {error}; export it again") from error


def inspect(
    artifact: str | Path | Artifact,
    *,
    num_classes: Sequence[int] = HEADS,
    width: int | None = None,
    micro_batches: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    check: bool = False,
    timeline: bool = False,
    on_note: Note = unheard,
) -> Inspection:
    """What an artifact holds and what it costs, its hashes verified.

    num_classes    numbers of classes n to show the head's share for
    width          classes that a client samples
    micro_batches  lower again for these, and measure: what would they need?
    widths         to measure them at; `width` and the largest if not given
    timeline       also what an ExecuTorch step holds in memory while it runs, call by call
    check          run the golden step on every runtime here; `CheckFailed` if one does not reproduce it
    """
    opened = artifact if isinstance(artifact, Artifact) else open_artifact(artifact)
    (sampled,) = widths_of(opened, None if width is None else [width], "width")
    measured_widths = [sampled, opened.max_width] if widths is None else widths_of(opened, widths)
    over_time = memory_timeline(program_calls(opened), opened.signature, opened.bounds) if timeline else None
    if check:
        _check_runtimes(opened, on_note)
    memory = opened.manifest.memory
    if micro_batches is not None or widths is not None:
        from export.cost.memory import memory_table

        runtimes = [name for name in opened.manifest.runtimes if name in WITHOUT_TORCH]
        memory = tuple(
            memory_table(
                opened,
                cast(Sequence[Runtime], runtimes),
                micro_batches or [opened.micro_batch],
                sorted(set(measured_widths)),
                on_note,
            )
        )
    heads = tuple(_head(opened, classes, sampled) for classes in num_classes)
    return Inspection(opened, heads, memory, over_time)


def _check_runtimes(artifact: Artifact, note: Note) -> None:
    """An artifact proves itself wherever it lands: other processors, other builds of a runtime."""
    steps, weights = artifact.golden_steps(), artifact.initial()
    for runtime in artifact.manifest.runtimes:
        backend, slack = open_backend(artifact, runtime), SLACK.get(runtime, 1.0)
        comparison = worst_of([check_golden(backend, weights, golden, slack) for golden in steps])
        note(f"{runtime}: {comparison.explain()}")
        if not comparison.passed:
            raise CheckFailed(
                f"{runtime} does not reproduce the golden step of {artifact.directory}: {comparison.explain()}"
            )


def _head(artifact: Artifact, num_classes: int, width: int) -> Head:
    extractor = sum(parameter.size for parameter in artifact.manifest.parameters)
    parameters = num_classes * sum(artifact.signature.table_dims.values())
    held = min(width, num_classes)
    return Head(
        num_classes=num_classes,
        parameters=parameters,
        share=parameters / (parameters + extractor),
        width=held,
        sampled=round_bytes(artifact.signature, held),
        full=round_bytes(artifact.signature, num_classes),
    )
