"""A function of tensors and its gradients, lowered both ways and run, to be compared with torch.

ONNX on the real runtime; what is rewritten for ExecuTorch in float64, its kernels in plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from export.executorch.rules.planes import rewrite
from export.normal_form import functional, simplify
from export.onnx.operators.table import formulation_of
from export.onnx.translation import Translation
from export.proof.rewrite_check import in_float64
from ondevice.contract.step_signature import ArraySpec

Function = Callable[..., Tensor]

TOLERANCE = 5e-6
"""Relative, of a result as a whole."""
TIMES_EAGER = 4.0
"""Or so many times what torch's own float32 is off."""
ROUNDED_CONSTANTS = 1e-6
"""Of a graph that is rewritten and run in float64: what is exact but for constants that were computed in float32."""


def value_and_gradients(function: Function, tensors: Sequence[Tensor], direction: Tensor) -> list[Tensor]:
    """The value, and the gradient of its product with a direction for every tensor of floats."""
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    value = function(*leaves)
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = torch.autograd.grad((value * direction).sum(), trained, materialize_grads=True)
    return [value.detach(), *gradients]


def trace(function: Function, tensors: Sequence[Tensor]) -> fx.GraphModule:
    """Value and gradients as one graph in normal form; the last input is the direction."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def run(*given: Tensor) -> list[Tensor]:
        return value_and_gradients(function, given[:-1], given[-1])

    with mode, enable_python_dispatcher(), sdpa_kernel(SDPBackend.MATH):
        traced = make_fx(run, _allow_non_fake_inputs=True)(*(mode.from_tensor(tensor) for tensor in tensors))
    traced = functional(traced)
    simplify(traced, ())
    return traced


def lower(traced: fx.GraphModule, tensors: Sequence[Tensor]) -> bytes:
    translation = Translation(traced, formulation_of)
    specs = [
        ArraySpec(f"x{at}", "dense", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))  # type: ignore[arg-type]
        for at, tensor in enumerate(tensors)
    ]
    inputs = translation.name_inputs(specs)
    translation.run()
    count = len(traced.graph.output_node().args[0])  # type: ignore[arg-type]
    outputs = translation.name_outputs([f"y{at}" for at in range(count)])
    return translation.graph.serialise("case", inputs, outputs, {})


def run(program: bytes, tensors: Sequence[Tensor]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])
    wanted = [port.name for port in session.get_inputs()]
    given = {f"x{at}": tensor.numpy() for at, tensor in enumerate(tensors)}
    return list(session.run(None, {name: given[name] for name in wanted}))


def assert_right(function: Function, *tensors: Tensor) -> None:
    """Against autograd in float64."""
    torch.manual_seed(1)
    direction = torch.randn_like(function(*tensors))
    inputs = [*tensors, direction]
    exact = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    expected = value_and_gradients(function, exact[:-1], exact[-1])
    eager = value_and_gradients(function, tensors, direction)
    own = [_distance(mine.double(), truth) for mine, truth in zip(eager, expected, strict=True)]
    traced = trace(function, inputs)
    found = [torch.from_numpy(np.asarray(array)) for array in run(lower(traced, inputs), inputs)]
    _assert_near("onnx", found, expected, [max(TOLERANCE, TIMES_EAGER * distance) for distance in own])
    with torch.no_grad():
        rewritten = in_float64(rewrite(traced))(*exact)
    _assert_near("executorch", rewritten, expected, [ROUNDED_CONSTANTS] * len(expected))


def _assert_near(
    lowering: str, found: Sequence[Tensor], expected: Sequence[Tensor], most: Sequence[float]
) -> None:
    for at, (mine, truth, bound) in enumerate(zip(found, expected, most, strict=True)):
        what = f"{lowering}: {f'gradient {at}' if at else 'the value'}"
        assert mine.shape == truth.shape, f"{what}: {tuple(mine.shape)} instead of {tuple(truth.shape)}"
        assert _distance(mine.double(), truth) <= bound, f"{what}: {_distance(mine.double(), truth)}"


def _distance(found: Tensor, truth: Tensor) -> float:
    """Relative, of a result as a whole."""
    size = max(float(torch.linalg.vector_norm(truth)), 1e-6)
    return float(torch.linalg.vector_norm(found - truth)) / size
