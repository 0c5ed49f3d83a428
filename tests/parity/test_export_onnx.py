"""step.onnx and embed.onnx: standard operators, the contract's names, padding, and what is refused."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from helpers.runtime_artifact import MAX_WIDTH, make_artifact, random_step_inputs
from torch import Tensor, nn

from export.onnx import lowering as lower_onnx
from export.proof.golden import build_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.backends import Batch
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.backends.onnxruntime_module import OnnxruntimeBackend
from ondevice.contract.artifact import Artifact
from ondevice.contract.vocabulary import EXCLUDED, StepSpec
from ondevice.model.train_step import TrainStep

SMALL = StepSpec("three_convolutions", embedding_dim=16, image_shape=(1, 16, 16))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_artifact(tmp_path_factory.mktemp("small"), SMALL, "onnxruntime")


def test_padding_gets_no_gradient_and_changes_nothing(small: Artifact) -> None:
    backend = OnnxruntimeBackend(small)
    columns, adjust, batch = random_step_inputs(SMALL, 9, 2)
    plain = backend.step(small.initial(), columns, adjust, batch)
    more_columns = np.concatenate([columns, np.ones((3, SMALL.column_dim), np.float32)])
    more_adjust = np.concatenate([adjust, np.full(3, EXCLUDED)])
    padded = backend.step(small.initial(), more_columns, more_adjust, batch)
    assert not padded.columns_gradient[9:].any()
    np.testing.assert_allclose(padded.columns_gradient[:9], plain.columns_gradient, rtol=1e-5, atol=1e-8)
    assert padded.loss == pytest.approx(plain.loss, rel=1e-6)


def test_weights_changed_in_place_count_at_the_next_step(small: Artifact) -> None:
    backend = OnnxruntimeBackend(small)
    inputs = random_step_inputs(SMALL, 9, 2)
    weights = small.initial()
    before = backend.step(weights, *inputs).loss
    weights["embedding.weight"] *= -1
    after = backend.step(weights, *inputs).loss
    assert after == pytest.approx(EagerBackend(SMALL, weights).step(weights, *inputs).loss, rel=1e-5)
    assert abs(after - before) > 1e-3


def test_embeddings_of_any_number_of_images_are_those_of_eager(small: Artifact) -> None:
    images = np.random.default_rng(0).standard_normal((11, *SMALL.image_shape), np.float32)
    weights = small.initial()
    embeddings = OnnxruntimeBackend(small).embed(weights, images)
    np.testing.assert_allclose(
        embeddings, EagerBackend(SMALL, weights).embed(weights, images), rtol=1e-4, atol=1e-5
    )
    assert OnnxruntimeBackend(small).embed(weights, images[:0]).shape == (0, 16)


def test_the_graph_is_standard_onnx_with_the_contracts_names_in_order(small: Artifact) -> None:
    model = onnx.load(small.path("step.onnx"))
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert model.ir_version <= 10
    assert {node.domain for node in model.graph.node} == {""}
    names = [*small.trainable, "columns"]
    assert [port.name for port in model.graph.input] == [
        *names,
        "adjust",
        "images",
        "labels",
        "example_weight",
    ]
    assert [port.name for port in model.graph.output] == ["loss", *(f"gradient/{name}" for name in names)]
    columns = model.graph.input[len(small.trainable)].type.tensor_type.shape
    assert columns.dim[0].dim_param == "width"


def test_a_frozen_extractor_has_no_backward_pass() -> None:
    for train, convolutions in [
        ("all", 8),
        ("head", 3),
    ]:  # three forward; of the gradients the first has no input's
        spec = StepSpec("three_convolutions", 16, (1, 15, 17), train=train)  # type: ignore[arg-type]
        step = build_step(spec, initial_parameters(spec, 0))
        model = onnx.load_from_string(lower_onnx.lower_step(step, 2, 8))
        two_dimensional = [
            node
            for node in model.graph.node
            for attribute in node.attribute
            if attribute.name == "kernel_shape" and len(attribute.ints) == 2
        ]
        assert len(two_dimensional) == convolutions
        assert (
            collections.Counter(node.op_type for node in two_dimensional)["ConvTranspose"]
            == (train == "all") * 2
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": MAX_WIDTH + 1}, "1501 columns; the step takes 1 to 1500"),
        ({"label": 9}, "labels reach from"),
        ({"label": -1}, "labels reach from -1"),
        ({"image_shape": (1, 17, 16)}, "images are float32"),
        ({"examples": 5}, "5 examples; one step takes 1 to 4"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(small: Artifact, change: dict[str, Any], message: str) -> None:
    width, examples = change.get("width", 9), change.get("examples", 2)
    columns, adjust, batch = random_step_inputs(SMALL, width, examples)
    if "label" in change:
        batch.labels[-1] = change["label"]
    if "image_shape" in change:
        batch = Batch(np.zeros((2, *change["image_shape"]), np.float32), batch.labels, batch.example_weight)
    with pytest.raises(ValueError, match=message):
        OnnxruntimeBackend(small).step(small.initial(), columns, adjust, batch)


def test_weights_of_another_shape_or_name_are_refused(small: Artifact) -> None:
    backend = OnnxruntimeBackend(small)
    inputs = random_step_inputs(SMALL, 9, 2)
    weights = small.initial()
    with pytest.raises(
        ValueError, match=r"conv2.weight is of shape \[1, 2\]; expected float32\[64, 32, 3, 3\]"
    ):
        backend.step({**weights, "conv2.weight": np.zeros((1, 2), np.float32)}, *inputs)
    with pytest.raises(ValueError, match=r"norm1\.bias is missing"):
        backend.step({name: value for name, value in weights.items() if name != "norm1.bias"}, *inputs)


class Gelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(16, 8)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(torch.nn.functional.gelu(images.flatten(1)))
        return embeddings


def test_an_unsupported_operator_is_named_with_what_to_do() -> None:
    step = TrainStep(StepSpec("gelu", 8, (1, 4, 4)), Gelu())
    with pytest.raises(UnsupportedOperator, match=r"aten\.gelu\.default.*add one to FORMULATIONS"):
        lower_onnx.lower_step(step, 2, 8)
