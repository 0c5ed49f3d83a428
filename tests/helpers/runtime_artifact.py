"""A real artifact for one runtime, without the pipeline's measurements, and inputs to step it with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.lowering import lower
from export.proof.golden import build_step, draw_images, expected_step, float64_copy
from ondevice.backends import Batch
from ondevice.backends.eager import initial_parameters
from ondevice.backends.opening import Runtime
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import GOLDEN, INITIAL, Artifact, Manifest, Parameter, write_artifact
from ondevice.contract.golden_step import golden_to_tensors
from ondevice.contract.vocabulary import FloatArray, StepSpec

MICRO_BATCH, MAX_WIDTH = 4, 1500


def make_artifact(directory: Path, spec: StepSpec, runtime: Runtime) -> Artifact:
    """Micro-batch 4, width up to 1500, weights of seed 3."""
    weights = initial_parameters(spec, 3)
    step = build_step(spec, weights)
    exact = float64_copy(step)
    golden = expected_step(exact, draw_images(exact, MICRO_BATCH, seed=0), width=7, seed=0)
    files = {
        INITIAL: safetensors_file.to_bytes(weights, {}),
        GOLDEN: safetensors_file.to_bytes(golden_to_tensors(golden), {}),
    }
    manifest = Manifest(
        spec=spec,
        micro_batch=MICRO_BATCH,
        max_width=MAX_WIDTH,
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
    return write_artifact(directory, manifest, files | lower(runtime, step, MICRO_BATCH, MAX_WIDTH))


def random_step_inputs(
    spec: StepSpec, width: int, examples: int, seed: int = 0
) -> tuple[FloatArray, FloatArray, Batch]:
    random = np.random.default_rng([seed, width])
    columns = random.standard_normal((width, spec.column_dim), np.float32)
    adjust = random.standard_normal(width, np.float32)
    batch = Batch(
        random.standard_normal((examples, *spec.image_shape), np.float32),
        random.integers(0, width, examples),
        np.full(examples, 1 / examples, np.float32),
    )
    return columns, adjust, batch
