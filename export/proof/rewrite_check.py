"""Is the rewritten graph still the step?  Both run in float64, the operators of `ondevice/native` in plain torch.

There is next to no rounding to allow for and no kink to fall on the wrong side of, so what is wrong shows at once, and
without ExecuTorch, whose lowering of one network takes seconds.  What this proves is the rewrite; the kernels have tests of
their own, and the golden step proves both together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, fx

import export.proof.reference_grids
import export.proof.reference_kernels  # noqa: F401  # makes our operators runnable in torch
from export.executorch.pixels import fuse_pixels
from export.executorch.rules.planes import rewrite
from export.proof.kinks import in_precision, neighbour_of
from export.trace import extractor_tensors, trace_step
from ondevice.contract.step_signature import Arrays
from ondevice.model.train_step import TrainStep, step_outputs

TOLERANCE = 1e-9
"""Relative, of a gradient; and of the largest gradient for one that is 0 but for cancellation."""
NEIGHBOURS = 8
"""Where that is missed: autograd on weights that are one rounding away shows what a gradient of rounding errors is worth."""
MULTIPLE = 3.0
"""Of the most that these differ by."""
TOLERANCE_OF_ROUNDED = 1e-4
"""Where the graph has constants that were computed in float32, as the weights of an enlarged picture are: they are off by
1e-7, and a network may make more of it.  What is wrong is wrong by far more."""


def rewrite_errors(step: TrainStep, data: Arrays, traced: fx.GraphModule | None = None) -> list[str]:
    """The outputs of the rewritten step that are not those of autograd, by name.

    `data`: the signature's, in float32.  `traced`: the step, if it is traced already; it is of no use afterwards.
    """
    inputs = {name: in_precision(array, torch.float64) for name, array in data.items()}
    examples = len(inputs[step.signature.features[0].name])
    rewritten = rewrite(fuse_pixels(traced or trace_step(step, examples)))
    tolerance = TOLERANCE_OF_ROUNDED if _has_rounded_constants(rewritten, step) else TOLERANCE
    expected, found = _expected(step, inputs), _run(rewritten, step, inputs)
    errors = _differences(step, expected, found, tolerance)
    if not errors:
        return []
    return _differences(step, expected, found, tolerance, _roundings(step, inputs, expected))


def _has_rounded_constants(graph: fx.GraphModule, step: TrainStep) -> bool:
    """Whether there are numbers that are neither whole nor the network's own."""
    own = {tensor.data_ptr() for tensor in extractor_tensors(step).values()}
    constants = [getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr"]
    return any(
        constant.is_floating_point() and constant.data_ptr() not in own and bool((constant % 1 != 0).any())
        for constant in constants
    )


def _expected(step: TrainStep, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    exact = copy.deepcopy(step).double()
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    tables = [given[table].requires_grad_() for table in step.signature.table_dims]
    return step_outputs(exact(*given.values()), [*exact.trainable_tensors(), *tables])


def _roundings(step: TrainStep, inputs: Mapping[str, Tensor], expected: Sequence[Tensor]) -> list[float]:
    """Per output: the most that one rounding of the weights moves it.  A bias in front of a norm has a gradient of 0, which
    is computed as a sum of large numbers, and comes out as their rounding errors."""
    random = np.random.default_rng(0)
    moved = [_expected(neighbour_of(step, random, torch.float64), inputs) for _ in range(NEIGHBOURS)]
    return [
        max(float((other - right).norm()) for other in others)
        for right, others in zip(expected, zip(*moved, strict=True), strict=True)
    ]


def _run(graph: fx.GraphModule, step: TrainStep, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    weights = (tensor.detach().double() for tensor in step.trainable_tensors())
    with torch.no_grad():
        outputs: list[Tensor] = in_float64(graph)(*weights, *inputs.values())
    return outputs


def in_float64(graph: fx.GraphModule) -> fx.GraphModule:
    """The same graph, changed: it was traced in float32 and makes numbers of that."""
    for node in graph.graph.nodes:
        if node.kwargs.get("dtype") is torch.float32 or node.target is torch.ops.aten.full.default:
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
    graph.recompile()
    return graph.double()


def _differences(
    step: TrainStep,
    expected: Sequence[Tensor],
    found: Sequence[Tensor],
    tolerance: float,
    roundings: Sequence[float] = (),
) -> list[str]:
    largest = max(float(tensor.abs().max()) for tensor in expected)
    allowed = [
        tolerance * (float(right.norm()) + 1e-3 * largest) + MULTIPLE * rounding
        for right, rounding in zip(expected, roundings or [0.0] * len(expected), strict=True)
    ]
    errors = []
    for name, right, output, most in zip(step.signature.outputs, expected, found, allowed, strict=True):
        if output.shape != right.shape:
            errors.append(f"{name} is {list(output.shape)}, not {list(right.shape)}")
            continue
        distance = float((output - right).norm())
        if not distance <= most:
            errors.append(f"{name} by {distance:.1e} of {float(right.norm()):.1e}")
    return errors
