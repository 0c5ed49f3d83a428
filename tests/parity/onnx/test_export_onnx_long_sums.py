"""Sums of many numbers keep the digits that eager float32 keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from export.onnx.graph import GraphBuilder, Port

REDUCED = {
    "planes": ([3, 5, 60, 70], [2, 3]),
    "all but channels": ([2, 80, 90, 4], [0, 1, 2]),
    "one long axis": ([3, 4096], [1]),
    "examples and places": ([4, 3136, 8], [0, 1]),
    "long and prime": ([2, 4099], [1]),
    "a prime and another": ([4099, 3, 2], [0, 2]),
    "short": ([7, 9, 16], [1]),
    "everything": ([3, 50, 60], [0, 1, 2]),
}
EXACT: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceLogSumExp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis=axis, keepdims=keepdims)),
    "ReduceL1": lambda x, axis, keepdims: np.abs(x).sum(axis=axis, keepdims=keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt((x**2).sum(axis=axis, keepdims=keepdims)),
}


def program(operator: str, shape: list[int], axes: list[int], result: tuple[int, ...], keep: bool) -> bytes:
    graph = GraphBuilder()
    total = graph.call(operator, "x", graph.integers(*axes), keepdims=int(keep))
    return graph.serialise("sum", [Port("x", tuple(shape))], [(Port("y", result), total)], {})


def run(model: bytes, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    (y,) = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    return np.asarray(y)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("operator", EXACT)
@pytest.mark.parametrize(("shape", "axes"), REDUCED.values(), ids=REDUCED)
def test_parts_give_the_sum(shape: list[int], axes: list[int], operator: str, keep: bool) -> None:
    x = np.random.default_rng(0).normal(1, 0.3, shape).astype(np.float32)
    expected = EXACT[operator](x.astype(np.float64), axis=tuple(axes), keepdims=keep)
    found = run(program(operator, shape, axes, expected.shape, keep), x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_long_sum_keeps_its_digits() -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (64 * 1024, 4)).astype(np.float32)
    model = program("ReduceSum", [64 * 1024, 4], [0], (4,), keep=False)
    exact = x.astype(np.float64).sum(axis=0)
    kinds = [node.op_type for node in onnx.load_from_string(model).graph.node]
    assert kinds.count("ReduceSum") == 2
    assert np.abs(run(model, x) / exact - 1).max() < 1e-6
    # What the runtime makes of it in one go.
    in_one = onnx.load_from_string(model)
    first = next(node for node in in_one.graph.node if node.op_type == "ReduceSum")
    last = [node for node in in_one.graph.node if node.op_type == "ReduceSum"][-1]
    last.input[0] = "x"
    for node in [node for node in in_one.graph.node if node.op_type == "Reshape" or node == first]:
        in_one.graph.node.remove(node)
    assert np.abs(run(in_one.SerializeToString(), x) / exact - 1).max() > 1e-6
