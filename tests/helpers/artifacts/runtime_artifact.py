"""A real artifact for one runtime, without the pipeline's measurements, and inputs to step it with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from export.lowering import lower
from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from ondevice.backends.eager import initial_parameters
from ondevice.backends.opening import Runtime
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import GOLDEN, INITIAL, Artifact, write_artifact
from ondevice.contract.artifacts.manifest import Manifest, Parameter
from ondevice.contract.golden_step import golden_to_tensors
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, Bounds, StepSignature, rows_of
from ondevice.contract.vocabulary import FloatArray, StepSpec

MICRO_BATCH, MAX_WIDTH = 4, 1500
StepArrays = dict[str, npt.NDArray[Any]]


def bounds_of(signature: StepSignature, micro_batch: int = MICRO_BATCH, most: int = MAX_WIDTH) -> Bounds:
    """So many examples, and so many rows of every table."""
    return {EXAMPLES: micro_batch, **{rows_of(table): most for table in signature.table_dims}}


def make_artifact(directory: Path, spec: StepSpec, runtime: Runtime) -> Artifact:
    """Micro-batch 4, up to 1500 rows of every table, weights of seed 3."""
    weights = initial_parameters(spec, 3)
    step = build_step(spec, weights)
    exact = float64_copy(step)
    golden = expected_step(exact, draw_features(exact, MICRO_BATCH, seed=0), rows=7, seed=0)
    files = {
        INITIAL: safetensors_file.to_bytes(weights, {}),
        GOLDEN: safetensors_file.to_bytes(golden_to_tensors(golden), {}),
    }
    bounds = bounds_of(step.signature)
    manifest = Manifest(
        spec=spec,
        signature=step.signature,
        bounds=bounds,
        embedding=step.extractor.embedding_shape(spec.embedding_dim),
        runtimes=(runtime,),
        parameters=tuple(
            Parameter(name, value.shape, name in step.trainable) for name, value in weights.items()
        ),
        files={},
        memory=(),
        parity={},
        operators={},
        provenance={},
    )
    return write_artifact(directory, manifest, files | lower(runtime, step, bounds))


def dense_of(artifact: Artifact) -> dict[str, FloatArray]:
    """The weights that a step takes, in arrays of the caller's own."""
    initial = artifact.initial()
    return {name: initial[name] for name in artifact.signature.dense_shapes}


def random_step_inputs(signature: StepSignature, rows: int, examples: int, seed: int = 0) -> StepArrays:
    """The signature's data, but not the dense parameters: random, with examples that weigh the same."""
    random = np.random.default_rng([seed, rows])
    sizes = {EXAMPLES: examples, **{rows_of(table): rows for table in signature.table_dims}}
    return {spec.name: _drawn(spec, sizes, random) for spec in signature.data}


def _drawn(spec: ArraySpec, sizes: Bounds, random: np.random.Generator) -> npt.NDArray[Any]:
    shape = spec.sizes(sizes)
    if spec.role == "example_weight":
        return np.full(shape, 1 / sizes[EXAMPLES], np.float32)
    if spec.positions_in is not None:
        return random.integers(0, sizes[rows_of(spec.positions_in)], shape)
    if spec.dtype == "float32":
        return random.standard_normal(shape, np.float32)
    return random.integers(0, spec.below or 256, shape).astype(spec.dtype)
