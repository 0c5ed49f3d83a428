"""Random small networks on the ONNX lowering: right on the real runtime, or refused by the named error; nothing else."""

from __future__ import annotations

import os

import onnxruntime
import pytest
from helpers.artifacts.runtime_artifact import bounds_of
from helpers.networks.random_networks import random_network

from export.onnx.lowering import lower_step
from export.proof.golden import draw_features, expected_step, float64_copy
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.golden_step import Comparison, compare

FIRST = int(os.environ.get("FEDSS_FIRST_NETWORK", "0"))
NETWORKS = int(os.environ.get("FEDSS_NETWORKS", "120"))
"""More of them, once, by hand: FEDSS_NETWORKS=2000."""
AT_ONCE = 10
EXAMPLES, WIDTH, MAX_WIDTH = 3, 9, 16


def lowered_and_compared(seed: int) -> Comparison:
    step = random_network(seed).step("cosine")
    exact = float64_copy(step)
    golden = expected_step(exact, draw_features(exact, EXAMPLES, seed), WIDTH, seed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    program = lower_step(step, bounds_of(step.signature, EXAMPLES, MAX_WIDTH))
    session = onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])
    weights = {name: step.extractor.get_parameter(name).detach().numpy() for name in step.trainable}
    found = session.run(None, {**weights, **golden.inputs})
    return compare(dict(zip(step.signature.outputs, found, strict=True)), golden)


@pytest.mark.parametrize("first", range(FIRST, FIRST + NETWORKS, AT_ONCE))
def test_a_random_network_is_right_or_refused_by_name(first: int) -> None:
    refused = 0
    for seed in range(first, first + AT_ONCE):
        try:
            comparison = lowered_and_compared(seed)
        except UnsupportedOperator:
            refused += 1
            continue
        assert comparison.passed, f"{random_network(seed).description}: {comparison.explain()}"
    assert refused < AT_ONCE  # else nothing was proved
