"""step.onnx and embed.onnx: standard operators, the contract's names, padding, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from helpers.artifacts.runtime_artifact import (
    MAX_WIDTH,
    bounds_of,
    dense_of,
    make_artifact,
    random_step_inputs,
)
from torch import Tensor, nn

from export.onnx import lowering as lower_onnx
from export.proof.golden import build_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.backends.eager import EagerBackend, initial_parameters
from ondevice.backends.onnxruntime_module import OnnxruntimeBackend
from ondevice.contract.artifact import Artifact
from ondevice.contract.vocabulary import EXCLUDED, StepSpec
from ondevice.model.extractors.extractor import ImageExtractor
from ondevice.model.train_step import TrainStep

SMALL = StepSpec("three_convolutions", embedding_dim=16, image_shape=(1, 16, 16))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_artifact(tmp_path_factory.mktemp("small"), SMALL, "onnxruntime")


def test_padding_gets_no_gradient_and_changes_nothing(small: Artifact) -> None:
    backend = OnnxruntimeBackend(small)
    inputs = {**dense_of(small), **random_step_inputs(small.signature, 9, 2)}
    plain = backend.step(inputs)
    more = {
        "columns": np.concatenate([inputs["columns"], np.ones((3, SMALL.column_dim), np.float32)]),
        "adjust": np.concatenate([inputs["adjust"], np.full(3, EXCLUDED)]),
    }
    padded = backend.step({**inputs, **more})
    gradient = padded["gradient/columns"]
    assert not gradient[9:].any()
    np.testing.assert_allclose(gradient[:9], plain["gradient/columns"], rtol=1e-5, atol=1e-8)
    assert padded["loss"] == pytest.approx(plain["loss"], rel=1e-6)


def test_weights_changed_in_place_count_at_the_next_step(small: Artifact) -> None:
    backend = OnnxruntimeBackend(small)
    inputs = {**dense_of(small), **random_step_inputs(small.signature, 9, 2)}
    before = backend.step(inputs)["loss"]
    inputs["embedding.weight"] *= -1
    after = backend.step(inputs)["loss"]
    eager = EagerBackend(SMALL, small.initial()).step(inputs)
    assert after == pytest.approx(eager["loss"], rel=1e-5)
    assert abs(after - before) > 1e-3


def test_embeddings_of_any_number_of_images_are_those_of_eager(small: Artifact) -> None:
    weights = dense_of(small)
    images = random_step_inputs(small.signature, 1, 11)["images"]
    embeddings = OnnxruntimeBackend(small).embed({**weights, "images": images})
    expected = EagerBackend(SMALL, weights).embed({**weights, "images": images})
    np.testing.assert_allclose(embeddings, expected, rtol=1e-4, atol=1e-5)
    assert OnnxruntimeBackend(small).embed({**weights, "images": images[:0]}).shape == (0, 16)


def test_the_graph_is_standard_onnx_with_the_contracts_names_in_order(small: Artifact) -> None:
    model = onnx.load(small.path("step.onnx"))
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert model.ir_version <= 10
    assert {node.domain for node in model.graph.node} == {""}
    assert [port.name for port in model.graph.input] == [spec.name for spec in small.signature]
    assert [port.name for port in model.graph.output] == list(small.signature.outputs)
    kinds = {port.name: port.type.tensor_type for port in model.graph.input}
    assert kinds["columns"].shape.dim[0].dim_param == "rows:columns"
    assert kinds["images"].elem_type == onnx.TensorProto.UINT8
    assert kinds["labels"].elem_type == onnx.TensorProto.INT64
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata == {"b": "4", "rows:columns": str(MAX_WIDTH)}


@pytest.mark.parametrize(("train", "gradients"), [("all", 3), ("head", 0)])
def test_a_frozen_extractor_has_no_backward_pass(train: str, gradients: int) -> None:
    spec = StepSpec("three_convolutions", 16, (1, 15, 17), train=train)
    step = build_step(spec, initial_parameters(spec, 0))
    model = onnx.load_from_string(lower_onnx.lower_step(step, bounds_of(step.signature, 2, 8)))
    # The name of a node begins with that of the traced operator which it belongs to.
    operators = {node.name.split("/")[0] for node in model.graph.node}
    assert len([name for name in operators if name.startswith("convolution_backward")]) == gradients
    assert len([name for name in operators if name.startswith("convolution")]) == 3 + gradients


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": MAX_WIDTH + 1}, "1501 rows of columns; the step takes 1 to 1500"),
        ({"label": 9}, "labels reach from"),
        ({"label": -1}, "labels reach from -1"),
        (
            {"image_shape": (1, 17, 16)},
            r"images is uint8 \[2, 1, 17, 16\]; the step takes uint8 \[b, 1, 16, 16\]",
        ),
        ({"examples": 5}, "5 examples; the step takes 1 to 4: split the batch"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(small: Artifact, change: dict[str, Any], message: str) -> None:
    width, examples = change.get("width", 9), change.get("examples", 2)
    inputs = {**dense_of(small), **random_step_inputs(small.signature, width, examples)}
    if "label" in change:
        inputs["labels"][-1] = change["label"]
    if "image_shape" in change:
        inputs["images"] = np.zeros((2, *change["image_shape"]), np.uint8)
    with pytest.raises(ValueError, match=message):
        OnnxruntimeBackend(small).step(inputs)


def test_weights_of_another_shape_or_name_are_refused(small: Artifact) -> None:
    backend = OnnxruntimeBackend(small)
    inputs = {**dense_of(small), **random_step_inputs(small.signature, 9, 2)}
    with pytest.raises(
        ValueError, match=r"conv2.weight is float32 \[1, 2\]; the step takes float32 \[64, 32, 3, 3\]"
    ):
        backend.step({**inputs, "conv2.weight": np.zeros((1, 2), np.float32)})
    with pytest.raises(ValueError, match=r"norm1\.bias is missing"):
        backend.step({name: value for name, value in inputs.items() if name != "norm1.bias"})


class LogGamma(ImageExtractor):
    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        self.embedding = nn.Linear(16, 8)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(torch.lgamma(1 + images.flatten(1)))
        return embeddings


def test_an_unsupported_operator_is_named_with_what_to_do() -> None:
    spec = StepSpec("log_gamma", 8, (1, 4, 4))
    step = TrainStep(spec, LogGamma(spec))
    with pytest.raises(UnsupportedOperator, match=r"aten\.lgamma\.default.*add one to FORMULATIONS"):
        lower_onnx.lower_step(step, bounds_of(step.signature, 2, 8))
