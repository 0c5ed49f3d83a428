"""Models of texts and of bags of words: every runtime's step is the step, over padded and over other numbers of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.artifacts.runtime_artifact import (
    MAX_WIDTH,
    MICRO_BATCH,
    dense_of,
    make_artifact,
    random_step_inputs,
)
from helpers.data.tiny_labels import FEDAVG, FEDMLH
from helpers.data.tiny_texts import BAG, LENGTH, TIED, TOKEN, VOCABULARY

from export.proof.golden import build_step, draw_features, expected_step, float64_copy
from ondevice.backends.eager import EagerBackend
from ondevice.backends.opening import Runtime, open_backend
from ondevice.contract.artifact import open_artifact
from ondevice.contract.golden_step import SLACK, check_golden
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor

pytestmark = pytest.mark.slow  # exports


@pytest.mark.parametrize(
    ("spec", "runtime"),
    [
        (TIED, "executorch"),
        (TIED, "onnxruntime"),
        (TIED, "onnxruntime-training"),
        (TOKEN, "executorch"),
        (TOKEN, "onnxruntime"),
        (BAG, "executorch"),
        (BAG, "onnxruntime"),
        (FEDMLH, "executorch"),
        (FEDMLH, "onnxruntime"),
        (FEDAVG, "executorch"),
        (FEDAVG, "onnxruntime"),
    ],
    ids=lambda part: part.architecture if isinstance(part, StepSpec) else part,
)
def test_the_exported_step_is_the_step(spec: StepSpec, runtime: Runtime, tmp_path: Path) -> None:
    make_artifact(tmp_path / "artifact", spec, runtime)
    artifact = open_artifact(tmp_path / "artifact")  # as another process reads it
    assert artifact.spec == spec
    backend = open_backend(artifact, runtime)
    weights = artifact.initial()
    exact = float64_copy(build_step(spec, weights))
    features = draw_features(exact, MICRO_BATCH, seed=1)
    for rows, examples in ((1, 1), (9, 3), (MAX_WIDTH, MICRO_BATCH)):
        some = {name: feature[:examples] for name, feature in features.items()}
        step = expected_step(exact, some, rows, seed=rows)
        comparison = check_golden(backend, weights, step, SLACK.get(runtime, 1.0))
        assert comparison.passed, f"{step.describe()}: {comparison.explain()}"
    # Evaluation takes any number of examples, and the rows that they hold positions in.
    inputs = random_step_inputs(artifact.signature, 9, MICRO_BATCH + 1, seed=2)
    arrays = {**dense_of(artifact), **{each.name: inputs[each.name] for each in artifact.signature.embedded}}
    expected = EagerBackend(spec, weights).embed(arrays)
    assert expected.shape == (MICRO_BATCH + 1, *artifact.embedding)
    assert artifact.embedding == ((LENGTH, spec.embedding_dim) if spec is TIED else (spec.embedding_dim,))
    np.testing.assert_allclose(backend.embed(arrays), expected, rtol=1e-4, atol=1e-5)
    if spec is not TIED:
        feature = artifact.signature.features[0].name
        arrays[feature][0, 0] = VOCABULARY
        with pytest.raises(ValueError, match=f"{feature} holds 40; expected 0 to 39"):
            backend.embed(arrays)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 2}, "tied_transformer has no argument 'depth'; it has length, layers, heads, hidden"),
        ({"layers": 0}, "tied_transformer: layers is 0; expected a whole number from 1"),
        ({"heads": 3}, "heads is 3; expected a divisor of the width 8"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_extractor(StepSpec("tied_transformer", 8, architecture_arguments=arguments))
