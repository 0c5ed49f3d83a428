"""A whole artifact but for programs, made in a moment: eager torch runs the step from its specification."""

from __future__ import annotations

from pathlib import Path

from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from ondevice.backends.eager import initial_parameters
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import GOLDEN, INITIAL, Artifact, write_artifact
from ondevice.contract.artifacts.manifest import Manifest, MemoryFigure, Parameter, Parity
from ondevice.contract.golden_step import golden_to_tensors
from ondevice.contract.step_signature import EXAMPLES, rows_of
from ondevice.contract.vocabulary import COLUMNS, StepSpec

SPEC = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))


def make_tiny_artifact(directory: Path) -> Artifact:
    """Micro-batch 4, up to 64 rows, weights of seed 3."""
    weights = initial_parameters(SPEC, 3)
    step = build_step(SPEC, weights)
    exact = float64_copy(step)
    golden = expected_step(exact, draw_features(exact, 3, seed=0), rows=7, seed=0)
    manifest = Manifest(
        spec=SPEC,
        signature=step.signature,
        bounds={EXAMPLES: 4, rows_of(COLUMNS): 64},
        embedding=(SPEC.embedding_dim,),
        runtimes=(),
        parameters=tuple(Parameter(name, value.shape, True) for name, value in weights.items()),
        files={},
        memory=(MemoryFigure("executorch", 4, 64, 1000, None),),
        parity={"executorch": Parity(1e-6, "columns", True)},
        operators={"step.pte": {"gemm": 3}},
        provenance={"seed": 3},
    )
    files = {
        INITIAL: safetensors_file.to_bytes(weights, {}),
        GOLDEN: safetensors_file.to_bytes(golden_to_tensors(golden), {}),
        "nested/notes.txt": b"any file at all",
    }
    return write_artifact(directory, manifest, files)
