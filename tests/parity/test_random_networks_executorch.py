"""The rewrite for ExecuTorch on random networks: run in float64, each is autograd to the last digits, or refused by name."""

from __future__ import annotations

import copy

import helpers.reference_kernels  # noqa: F401  # makes the operators of `ondevice/native` runnable in torch
import pytest
import torch
from helpers.random_networks import RandomNetwork, random_network
from helpers.runtime_artifact import random_step_inputs
from torch import Tensor, fx

from export.executorch.pixels import fuse_pixels
from export.executorch.rules.planes import rewrite
from export.proof.kinks import in_precision
from export.trace import trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.model.train_step import TrainStep, step_outputs

NETWORKS = 300
MICRO_BATCH, WIDTH = 2, 5
UNCLAIMED = ("max 2 ceil", "max 2 dilated")
"""What may be refused: no network that people train has it."""
TOLERANCE = 1e-9
"""Relative, of a gradient; and of the largest gradient for one that is 0 but for cancellation."""


def inputs_of(step: TrainStep, seed: int) -> dict[str, Tensor]:
    drawn = random_step_inputs(step.signature, WIDTH, MICRO_BATCH, seed)
    return {name: in_precision(array, torch.float64) for name, array in drawn.items()}


def expected_outputs(step: TrainStep, inputs: dict[str, Tensor]) -> list[Tensor]:
    exact = copy.deepcopy(step).double()
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    tables = [given[table].requires_grad_() for table in step.signature.table_dims]
    return step_outputs(exact(*given.values()), [*exact.trainable_tensors(), *tables])


def run_in_float64(graph: fx.GraphModule, step: TrainStep, inputs: dict[str, Tensor]) -> list[Tensor]:
    for node in graph.graph.nodes:  # the step was traced in float32 and casts its comparison to that
        if node.kwargs.get("dtype") is torch.float32:
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
    graph.recompile()
    weights = (tensor.detach().double() for tensor in step.trainable_tensors())
    outputs: list[Tensor] = graph.double()(*weights, *inputs.values())
    return outputs


def errors_of(network: RandomNetwork, seed: int) -> list[str]:
    """The outputs of the rewritten step that are not those of autograd, by name."""
    step = network.step("dot")
    rewritten = rewrite(fuse_pixels(trace_step(step, MICRO_BATCH)))
    inputs = inputs_of(step, seed)
    expected, found = expected_outputs(step, inputs), run_in_float64(rewritten, step, inputs)
    largest = max(float(tensor.abs().max()) for tensor in expected)
    errors = []
    for name, right, output in zip(step.signature.outputs, expected, found, strict=True):
        assert output.shape == right.shape, f"{name} is {list(output.shape)}, expected {list(right.shape)}"
        distance = float((output - right).norm())
        if not distance <= TOLERANCE * (float(right.norm()) + 1e-3 * largest):
            errors.append(f"{name} by {distance:.1e} of {float(right.norm()):.1e}")
    return errors


@pytest.mark.parametrize("first", range(0, NETWORKS, 50))
def test_a_rewritten_network_is_right_or_refused_by_name(first: int) -> None:
    for seed in range(first, first + 50):
        network = random_network(seed)
        may_be_refused = any(option in network.description for option in UNCLAIMED)
        try:
            errors = errors_of(network, seed)
        except UnsupportedOperator as refused:
            if may_be_refused:
                continue
            raise AssertionError(f"{network.description}: refused, though it is claimed") from refused
        except Exception as error:
            raise AssertionError(f"{network.description}: neither rewritten nor refused") from error
        assert not errors, f"{network.description}: wrong in {', '.join(errors)}"
