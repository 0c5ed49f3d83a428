"""The loss has two spellings, one for numbers and one for the graphs that are exported: they are the same loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from export.trace import trace_step
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.contract.step_signature import Arrays
from ondevice.contract.vocabulary import EXCLUDED, StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep

SPEC = StepSpec("three_convolutions", 16, (1, 8, 8))
EXAMPLES, WIDTH = 6, 2028


def wide_step(adjusts_targets: bool) -> Arrays:
    """A step over a wide slice; NegOnly alone adjusts the logits of positives, and so of targets."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, WIDTH, EXAMPLES)
    adjust = rng.standard_normal(WIDTH).astype(np.float32)
    adjust[labels] = EXCLUDED if adjusts_targets else 0
    return {
        **initial_parameters(SPEC, 0),
        "columns": rng.standard_normal((WIDTH, 16), np.float32),
        "adjust": adjust,
        "images": rng.integers(0, 256, (EXAMPLES, 1, 8, 8), np.uint8),
        "labels": labels,
        "example_weight": np.full(EXAMPLES, 1 / EXAMPLES, np.float32),
    }


@pytest.mark.parametrize("adjusts_targets", [False, True])
def test_the_traced_loss_is_that_of_the_eager_backend(adjusts_targets: bool) -> None:
    arrays = wide_step(adjusts_targets)
    backend = EagerBackend(SPEC, initial_parameters(SPEC, 0))
    traced = trace_step(TrainStep(SPEC, build_extractor(SPEC)), EXAMPLES)
    expected = backend.step(arrays)
    outputs = traced(*(torch.from_numpy(arrays[spec.name]) for spec in backend.signature))
    for name, output in zip(backend.signature.outputs, outputs, strict=True):
        torch.testing.assert_close(output, torch.from_numpy(expected[name]), rtol=1e-5, atol=1e-6, msg=name)


def test_the_exported_graph_picks_the_target_by_a_comparison() -> None:
    """Operators that every lowering has, whatever the numbers' spelling uses."""
    traced = trace_step(TrainStep(SPEC, build_extractor(SPEC)), EXAMPLES)
    operators = {str(node.target) for node in traced.graph.nodes}
    assert {"aten.eq.Tensor", "aten.logsumexp.default"} <= operators
    assert not any("nll" in name or "log_softmax" in name or "index" in name for name in operators)
