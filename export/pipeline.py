"""The export from recipe to published artifact: weights, lowerings, golden step, parity, memory; all of it or nothing.

Everything is made in a directory beside the target that is renamed at the very end, and removed if anything fails.  The
checks run on the staged artifact through the same backends as on any later day: what was checked is what is published.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from export.audit import check_examples_are_independent
from export.cost.budget import largest_micro_batch
from export.cost.footprint import operators, planned_bytes
from export.cost.memory import Report, measure_programs, measure_widths
from export.cost.pace import measure_pace
from export.cost.scope import explain_scope
from export.lengths import check_padding_changes_nothing, lengths_of
from export.lowering import lower_lengths
from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from export.proof.golden_images import KINDS
from export.proof.parity import ParityFailed, check_parity
from export.recipe import LARGEST_MICRO_BATCH, ExportRecipe, check_target
from ondevice.backends.eager import initial_parameters
from ondevice.backends.opening import WITHOUT_TORCH, Runtime
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import (
    GOLDEN,
    INITIAL,
    MEGABYTE,
    Artifact,
    ArtifactError,
    open_artifact,
    rewrite_manifest,
    write_artifact,
)
from ondevice.contract.artifacts.lengths import Lengths, folder_of
from ondevice.contract.artifacts.manifest import Manifest, MemoryFigure, Parameter, Parity
from ondevice.contract.golden_step import GoldenStep, golden_to_tensors
from ondevice.contract.step_signature import EXAMPLES, Bounds, rows_of
from ondevice.model.extractors import state_of
from ondevice.model.named_code import source_sha256
from ondevice.model.one_thread import one_thread
from ondevice.model.pretrained_weights import load_weights
from ondevice.model.train_step import TrainStep
from ondevice.tools.installed_versions import installed_versions

GOLDEN_EXAMPLES = 4
GOLDEN_ROWS = 16
PAPER_WIDTH = 170
"""The largest |S_k| of the paper's Landmarks clients."""
RUN_TO_RUN_BYTES = 2 * MEGABYTE
"""By how much the peak of the same process differs from one run to the next."""

Programs = dict[Runtime, dict[str, bytes]]


def export_artifact(
    recipe: ExportRecipe, out: Path, overwrite: bool = False, report: Report = lambda _: None
) -> Artifact:
    """Make the artifact `out`.  `report` is told what is being done.

    Raises ParityFailed or BudgetTooSmall when the artifact cannot be what was asked for; nothing is left behind then.
    """
    check_target(out, overwrite)
    weights = initial_parameters(recipe.spec, recipe.seed)
    if recipe.weights is not None:
        weights = load_weights(recipe.weights, weights)
    step = build_step(recipe.spec, weights)
    for remark in step.extractor.remarks:
        report(remark)
    with _quiet(), one_thread(), _staging(out) as directory:
        check_examples_are_independent(step, recipe.seed)
        lengths = lengths_of(step, recipe.lengths)
        if lengths is not None:
            check_padding_changes_nothing(step, lengths, recipe.seed)
        lowered = _Lowered(recipe, step, lengths, report)
        micro_batch = lowered.micro_batch()
        bounds = recipe_bounds(recipe, step, micro_batch)
        scope = explain_scope(step, bounds)
        if scope is not None:
            report(scope)
        programs = lowered.programs(micro_batch)
        report("computing the expected step in float64")
        golden, *others = _expected_steps(step, bounds, recipe.seed)
        of_lengths = _expected_of_lengths(step, lengths, bounds, recipe.seed)
        files = {INITIAL: _initial(step)} | {
            name: safetensors_file.to_bytes(golden_to_tensors(expected), {})
            for name, expected in {GOLDEN: golden, **of_lengths}.items()
        }
        artifact = write_artifact(
            directory / "artifact", _manifest(recipe, step, bounds, programs), files | _merged(programs)
        )
        _check_golden(artifact)
        parity: dict[str, Parity] = {}
        for runtime in recipe.runtimes:
            report(f"checking {runtime} against float64")
            parity[runtime] = check_parity(artifact, runtime, [golden, *others, *of_lengths.values()])
        provenance = dict(artifact.manifest.provenance)
        on_phones = [runtime for runtime in recipe.runtimes if runtime in WITHOUT_TORCH]
        paces = measure_pace(artifact, on_phones, step, others[-1])
        for name, pace in paces.items():
            report(f"{name}: {pace.explain()}")
        provenance["pace"] = {name: asdict(pace) for name, pace in paces.items()}
        memory = tuple(_memory(artifact, programs, report))
        rewrite_manifest(
            artifact.directory,
            replace(artifact.manifest, parity=parity, memory=memory, provenance=provenance),
        )
        _publish(artifact.directory, out)
    return open_artifact(out)


class _Lowered:
    """Programs by micro-batch, each made once: a memory budget tries several before one is published."""

    def __init__(
        self, recipe: ExportRecipe, step: TrainStep, lengths: Lengths | None, report: Report
    ) -> None:
        self._recipe = recipe
        self._step = step
        self._lengths = lengths
        self._report = report
        self._made: dict[tuple[Runtime, int], dict[str, bytes]] = {}

    def programs(self, micro_batch: int) -> Programs:
        return {runtime: self._lower(runtime, micro_batch) for runtime in self._recipe.runtimes}

    def micro_batch(self) -> int:
        """The recipe's, or the largest that its memory budget allows."""
        if self._recipe.memory_budget_mb is None:
            return self._recipe.micro_batch
        budget = self._recipe.memory_budget_mb * MEGABYTE
        return largest_micro_batch(self._peak_bytes, budget, LARGEST_MICRO_BATCH)

    def _peak_bytes(self, micro_batch: int) -> int:
        """The largest peak at the maximal width, of the runtimes that a phone has; of all where it has none of them."""
        on_phones = [runtime for runtime in self._recipe.runtimes if runtime in WITHOUT_TORCH]
        peak = 0
        for runtime in on_phones or self._recipe.runtimes:
            programs = self._lower(runtime, micro_batch)
            bounds = recipe_bounds(self._recipe, self._step, micro_batch)
            manifest = _manifest(self._recipe, self._step, bounds, {})
            (figure,) = measure_programs(
                manifest, programs, _initial(self._step), runtime, [self._recipe.max_width]
            )
            assert figure.peak_bytes is not None
            self._report(f"{runtime} at micro-batch {micro_batch}: {figure.peak_bytes / MEGABYTE:.0f} MB")
            peak = max(peak, figure.peak_bytes)
        return peak + RUN_TO_RUN_BYTES

    def _lower(self, runtime: Runtime, micro_batch: int) -> dict[str, bytes]:
        if (runtime, micro_batch) not in self._made:
            self._report(f"lowering for {runtime}, micro-batch {micro_batch}")
            bounds = recipe_bounds(self._recipe, self._step, micro_batch)
            self._made[runtime, micro_batch] = lower_lengths(runtime, self._step, self._lengths, bounds)
        return self._made[runtime, micro_batch]


def _expected_steps(step: TrainStep, bounds: Bounds, seed: int) -> list[GoldenStep]:
    """The golden step first; then every kind of example that it had no room for, a single example over a single row, and a
    full micro-batch over the most rows."""
    exact = float64_copy(step)
    micro_batch = bounds[EXAMPLES]
    most = min((bounds[rows_of(table)] for table in step.signature.table_dims), default=1)
    features = draw_features(exact, max(micro_batch, len(KINDS)), seed)

    def some(first: int, count: int, rows: int) -> GoldenStep:
        piece = {name: feature[first : first + count] for name, feature in features.items()}
        return expected_step(exact, piece, rows, seed)

    at_once = min(micro_batch, GOLDEN_EXAMPLES)
    first, *others = (some(start, at_once, min(GOLDEN_ROWS, most)) for start in range(0, len(KINDS), at_once))
    return [first, *others, some(0, 1, 1), some(0, micro_batch, most)]


def _check_golden(artifact: Artifact) -> None:
    """As every device will read it: one that is refused there must not be published."""
    try:
        artifact.golden()
    except ArtifactError as error:
        raise ParityFailed(
            f"float32 is too far from the truth for any runtime to be proven by it ({error}); nothing was published. "
            "Start from other weights, or normalise what the network sums up"
        ) from error


def _expected_of_lengths(
    step: TrainStep, lengths: Lengths | None, bounds: Bounds, seed: int
) -> dict[str, GoldenStep]:
    """By the file's name, of every shorter length: what the whole step must give, computed with all places."""
    if lengths is None:
        return {}
    exact = float64_copy(step)
    rows = min((bounds[rows_of(table)] for table in step.signature.table_dims), default=1)
    features = draw_features(exact, min(bounds[EXAMPLES], GOLDEN_EXAMPLES), seed)
    return {
        f"{folder_of(size)}/{GOLDEN}": expected_step(
            exact, lengths.padded(step.signature, features, size), min(GOLDEN_ROWS, rows), seed
        )
        for size in lengths.shorter
    }


def _memory(artifact: Artifact, programs: Programs, report: Report) -> Iterator[MemoryFigure]:
    """Planned where the program says so; measured at the paper's width and at the maximal one where a phone could do it."""
    widths = sorted({min(PAPER_WIDTH, artifact.max_width), artifact.max_width})
    for runtime, files in programs.items():
        planned = planned_bytes(files)
        if runtime in WITHOUT_TORCH:
            yield from measure_widths(artifact, runtime, planned, widths, report)
        else:
            yield MemoryFigure(runtime, artifact.micro_batch, artifact.max_width, planned, None)


def recipe_bounds(recipe: ExportRecipe, step: TrainStep, micro_batch: int) -> Bounds:
    """The most examples and rows that the recipe's step takes at once."""
    return {
        EXAMPLES: micro_batch,
        **{rows_of(table): recipe.max_width for table in step.signature.table_dims},
    }


def _manifest(
    recipe: ExportRecipe, step: TrainStep, bounds: Bounds, programs: Mapping[Runtime, Mapping[str, bytes]]
) -> Manifest:
    parameters = tuple(
        Parameter(name, tuple(tensor.shape), name in step.trainable)
        for name, tensor in state_of(step.extractor).items()
    )
    return Manifest(
        spec=recipe.spec,
        signature=step.signature,
        bounds=bounds,
        embedding=step.extractor.embedding_shape(recipe.spec.embedding_dim),
        runtimes=tuple(programs),
        parameters=parameters,
        files={},
        memory=(),
        parity={},
        operators=operators(_merged(programs)),
        provenance={
            "seed": recipe.seed,
            "memory_budget_mb": recipe.memory_budget_mb,
            "weights_sha256": recipe.weights and hashlib.sha256(recipe.weights.read_bytes()).hexdigest(),
            "source_sha256": source_sha256(recipe.spec.architecture),
            "objective_sha256": source_sha256(recipe.spec.objective),
            "remarks": list(step.extractor.remarks),
            "versions": installed_versions(),
        },
        lengths=lengths_of(step, recipe.lengths),
    )


def _initial(step: TrainStep) -> bytes:
    tensors = {name: tensor.detach().numpy() for name, tensor in state_of(step.extractor).items()}
    return safetensors_file.to_bytes(tensors, {})


def _merged(programs: Mapping[Runtime, Mapping[str, bytes]]) -> dict[str, bytes]:
    return {name: data for files in programs.values() for name, data in files.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch and ExecuTorch remark about their own insides while they export is not for our user."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A directory beside the target, on the same file system, that is gone afterwards in any case."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".partial", dir=out.parent) as directory:
        yield Path(directory)


def _publish(staged: Path, out: Path) -> None:
    """One rename, or two: an artifact that is replaced goes into the staging directory first, and with it."""
    if out.exists():
        out.rename(staged.parent / "replaced")
    staged.rename(out)
