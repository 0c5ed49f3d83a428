"""What an operator is told: every argument is in the ONNX graph, or refused by name; none is ignored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import onnxruntime
import pytest
import torch
from helpers.artifacts.runtime_artifact import bounds_of
from torch import Tensor, nn
from torch.nn import functional as F

from export.onnx.lowering import lower_step
from export.onnx.training_artifacts import lower as lower_for_training
from export.proof.golden import expected_step, float64_copy
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.golden_step import compare
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, Bounds
from ondevice.contract.vocabulary import COLUMNS, StepSpec
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.objectives import OBJECTIVES
from ondevice.model.objectives.sampled_softmax import SampledSoftmax
from ondevice.model.train_step import TrainStep

Body = Callable[[Tensor], Tensor]


class Between(Extractor):
    """A convolution, what is to be tried, and the embedding."""

    inputs = (ArraySpec("images", "feature", (EXAMPLES, 2, 9, 8)),)

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.body = body
        self.embedding = nn.Linear(int(self.pooled(torch.zeros(1, 2, 9, 8)).shape[1]), 5)

    def pooled(self, images: Tensor) -> Tensor:
        return self.body(self.convolution(images)).flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.pooled(images))
        return embeddings


def step_with(body: Body) -> TrainStep:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TrainStep(StepSpec("between", 5, (2, 9, 8)), Between(body))


def lowered(lower: Callable[[TrainStep, Bounds], object], body: Body) -> None:
    step = step_with(body)
    lower(step, bounds_of(step.signature, 3, 8))


def assert_right(body: Body) -> None:
    step = step_with(body)
    images = np.random.default_rng(0).standard_normal((3, 2, 9, 8), np.float32)
    golden = expected_step(float64_copy(step), {"images": images}, 6, seed=0)
    program = lower_step(step, bounds_of(step.signature, 3, 8))
    session = onnxruntime.InferenceSession(program, providers=["CPUExecutionProvider"])
    weights = {name: step.extractor.get_parameter(name).detach().numpy() for name in step.trainable}
    found = session.run(None, {**weights, **golden.inputs})
    comparison = compare(dict(zip(step.signature.outputs, found, strict=True)), golden)
    assert comparison.passed, comparison.explain()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x: torch.add(x, F.relu(x), alpha=0.5), id="add"),
        pytest.param(lambda x: torch.add(F.relu(x), x, alpha=-2), id="add, negative"),
        pytest.param(lambda x: torch.sub(x, F.relu(x), alpha=0.25), id="sub"),
        pytest.param(
            lambda x: x * 2.0 + x.mean((2, 3), keepdim=True), id="a number times planes, plus planes"
        ),
        pytest.param(lambda x: F.relu(x[:, :, -5:]), id="slice from the end"),
        pytest.param(lambda x: F.relu(x[:, :, 1:-1]), id="slice between"),
        pytest.param(lambda x: F.relu(x[:, :, ::2]), id="slice by steps"),
        pytest.param(lambda x: F.threshold(x, 1.0, 0.0), id="threshold that is no ReLU"),
        pytest.param(lambda x: F.group_norm(x, 2), id="GroupNorm without a weight"),
        pytest.param(lambda x: F.group_norm(x.flatten(2), 2), id="GroupNorm over one axis"),
        pytest.param(lambda x: torch.rsub(x, 1.0, alpha=2.0), id="rsub"),
        pytest.param(lambda x: F.max_pool1d(x.flatten(2), 2), id="max-pooling over one axis"),
    ],
)
def test_arithmetic_and_slices(body: Body) -> None:
    assert_right(body)


Window = tuple[int | tuple[int, int], int, int, int, bool]
"""Kernel, stride, padding, dilation, ceil mode."""
WINDOWS = list(itertools.product((2, (2, 3)), (2, 3), (0, 1), (1, 2), (False, True)))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_max_pool(window: Window) -> None:
    assert_right(lambda x: F.max_pool2d(x, *window))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        pytest.param(lambda x: x.sum((2, 3), dtype=torch.float64).float(), "dtype=torch.float64", id="sum"),
        pytest.param(lambda x: x.to(torch.float64).to(torch.float32), "torch.float64", id="cast"),
        pytest.param(
            lambda x: F.adaptive_max_pool2d(x, 2),
            "adaptive_max_pool2d",
            id="sizes that do not divide the image",
        ),
        pytest.param(
            lambda x: F.max_pool3d(x, (1, 2, 2)), "max_pool3d", id="an operator without a formulation"
        ),
    ],
)
def test_what_a_formulation_does_not_know_is_refused_by_name(body: Body, named: str) -> None:
    with pytest.raises(UnsupportedOperator, match=rf"the model uses .*{named}"):
        lowered(lower_step, body)


def test_a_slice_over_an_unknown_number_of_rows_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are not known yet look alike: the slice must not be taken for none."""

    class WithoutTheFirst(SampledSoftmax):
        def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
            return super().losses(embeddings, arrays) + arrays[COLUMNS][1:].square().sum()

    monkeypatch.setitem(OBJECTIVES, "sampled_softmax", WithoutTheFirst)
    with pytest.raises(UnsupportedOperator, match="slice"):
        lowered(lower_step, lambda x: x)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda table, ids: F.embedding(ids, table), id="embedding"),
        pytest.param(lambda table, ids: table[ids], id="index"),
        pytest.param(lambda table, ids: table.index_select(0, ids), id="select"),
    ],
)
def test_rows_of_a_table_are_read_by_id(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """As a tied table is: its rows are a network's input too, and their number is not known at export."""

    class Tied(SampledSoftmax):
        def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
            rows = read(arrays[COLUMNS], arrays["labels"])
            return super().losses(embeddings, arrays) + rows.square().sum(1)

    monkeypatch.setitem(OBJECTIVES, "sampled_softmax", Tied)
    assert_right(F.relu)


def test_the_training_artifacts_refuse_what_the_runtime_cannot_differentiate() -> None:
    with pytest.raises(
        UnsupportedOperator, match=r"cannot differentiate.*CumSum.*export for onnxruntime instead"
    ):
        lowered(lower_for_training, lambda x: x.cumsum(-1))
