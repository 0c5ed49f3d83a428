"""The rewrite for ExecuTorch on random networks: run in float64, each is autograd to the last digits, or refused by name."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import reference_kernels  # noqa: F401  # makes the operators of `ondevice/native` runnable in torch
import torch
from helpers.random_networks import EMBEDDING_DIM, RandomNetwork, random_network
from torch import Tensor, fx, nn

from export.executorch.lowering import lower_step
from export.executorch.rules.planes import rewrite
from export.trace import trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.train_step import TrainStep, loss_and_gradients
from ondevice.native.runtime.program import Program

NETWORKS = 300
MICRO_BATCH, WIDTH = 2, 5
TOLERANCE = 1e-9
"""Relative, of a gradient; and of the largest gradient for one that is 0 but for cancellation."""


def step_of(network: RandomNetwork) -> TrainStep:
    return TrainStep(StepSpec("random", EMBEDDING_DIM, network.image_shape, logits="dot"), network.module)


def inputs_of(step: TrainStep, seed: int) -> list[Tensor]:
    """columns, adjust, images, labels, example_weight"""
    draw = torch.Generator().manual_seed(seed)
    columns, adjust, images, weight = (
        torch.randn(*sizes, generator=draw, dtype=torch.float64)
        for sizes in (
            (WIDTH, step.spec.column_dim),
            (WIDTH,),
            (MICRO_BATCH, *step.spec.image_shape),
            (MICRO_BATCH,),
        )
    )
    labels = torch.randint(WIDTH, (MICRO_BATCH,), generator=draw)
    return [columns, adjust, images, labels, weight.abs()]


def expected_gradients(step: TrainStep, inputs: list[Tensor]) -> list[Tensor]:
    exact = copy.deepcopy(step).double()
    columns = inputs[0].clone().requires_grad_()
    loss = exact(columns, *inputs[1:])
    loss, gradients, columns_gradient = loss_and_gradients(loss, exact.trainable_tensors(), columns)
    return [loss, *gradients, columns_gradient]


def run_in_float64(graph: fx.GraphModule, step: TrainStep, inputs: list[Tensor]) -> list[Tensor]:
    for node in graph.graph.nodes:  # the step was traced in float32 and casts its comparison to that
        if node.kwargs.get("dtype") is torch.float32:
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
    graph.recompile()
    outputs: list[Tensor] = graph(*(tensor.detach().double() for tensor in step.trainable_tensors()), *inputs)
    return outputs


def errors_of(network: RandomNetwork, seed: int) -> list[str]:
    """The outputs of the rewritten step that are not those of autograd, by name."""
    step = step_of(network)
    rewritten = rewrite(trace_step(step, MICRO_BATCH))
    inputs = inputs_of(step, seed)
    expected, found = expected_gradients(step, inputs), run_in_float64(rewritten, step, inputs)
    largest = max(float(tensor.abs().max()) for tensor in expected)
    errors = []
    for name, right, output in zip(("loss", *step.trainable, "columns"), expected, found, strict=True):
        assert output.shape == right.shape, f"{name} is {list(output.shape)}, expected {list(right.shape)}"
        distance = float((output - right).norm())
        if not distance <= TOLERANCE * (float(right.norm()) + 1e-3 * largest):
            errors.append(f"{name} by {distance:.1e} of {float(right.norm()):.1e}")
    return errors


@pytest.mark.parametrize("first", range(0, NETWORKS, 50))
def test_a_rewritten_network_is_right_or_refused_by_name(first: int) -> None:
    refused = 0
    for seed in range(first, first + 50):
        network = random_network(seed)
        try:
            errors = errors_of(network, seed)
        except UnsupportedOperator:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"{network.description}: neither rewritten nor refused") from error
        assert not errors, f"{network.description}: wrong in {', '.join(errors)}"
    assert refused <= 15, f"{refused} of 50 networks of claimed operators were refused"


class _Head(nn.Module):
    """Convolutions and a head, with the last layer that the step asks for."""

    def __init__(self, features: nn.Sequential, channels: int) -> None:
        super().__init__()
        self.features = features
        self.embedding = nn.Linear(channels, EMBEDDING_DIM)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        embeddings: Tensor = self.embedding(features if features.dim() == 2 else features.mean((2, 3)))
        return embeddings


REAL = {
    "max-pooling before the mean": [
        nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1)
    ],
    "adaptive pooling, flattened": [nn.Conv2d(1, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(1)],
    "mean of a convolution": [nn.Conv2d(1, 8, 3, padding=1)],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("layers", REAL.values(), ids=REAL.keys())
def test_a_head_that_was_once_wrong_is_right_on_the_real_runtime(
    layers: list[nn.Module], tmp_path: Path
) -> None:
    module = _Head(nn.Sequential(*copy.deepcopy(layers)), 8)
    step = TrainStep(StepSpec("head", EMBEDDING_DIM, (1, 9, 9), logits="dot"), module)
    (tmp_path / "step.pte").write_bytes(lower_step(step, MICRO_BATCH, WIDTH))
    inputs = inputs_of(step, seed=0)
    expected = expected_gradients(step, inputs)
    given = [tensor.detach() for tensor in step.trainable_tensors()] + inputs
    found = [np.zeros(tuple(tensor.shape), np.float32) for tensor in expected]
    arrays = [(tensor.float() if tensor.is_floating_point() else tensor).numpy() for tensor in given]
    Program(tmp_path / "step.pte").run(arrays, found)
    for output, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(output, right.detach().numpy(), rtol=1e-3, atol=1e-5)
