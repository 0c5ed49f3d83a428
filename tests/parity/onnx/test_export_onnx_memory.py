"""What the ONNX step keeps alive: the order in which the runtime really runs it, and what its backward pass reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers.artifacts.runtime_artifact import MICRO_BATCH, StepArrays, bounds_of, random_step_inputs
from torch import Tensor, nn

from export.onnx import lowering as lower_onnx
from export.onnx.order import ancestors
from ondevice.contract.step_signature import gradient_of
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors.extractor import ImageExtractor
from ondevice.model.train_step import TrainStep, step_outputs

LAYERS = 3
CHANNELS, PIXELS = 16, 64
"""A layer's result has 2^18 numbers in a micro-batch of 4: worth computing again."""


class Layers(ImageExtractor):
    """Convolution, frozen norm and GELU, some times."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        widths = [3, *[CHANNELS] * LAYERS]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(widths[at], CHANNELS, 3, padding=1) for at in range(LAYERS)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS).eval() for _ in range(LAYERS))
        self.embedding = nn.Linear(CHANNELS, 8)

    def embed(self, images: Tensor) -> Tensor:
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nn.functional.gelu(norm(convolution(x)))
        embeddings: Tensor = self.embedding(x.mean((2, 3)))
        return embeddings


@pytest.fixture(scope="module")
def step() -> TrainStep:
    torch.manual_seed(0)
    spec = StepSpec("layers", 8, (3, PIXELS, PIXELS))
    return TrainStep(spec, Layers(spec))


@pytest.fixture(scope="module")
def program(step: TrainStep) -> bytes:
    return lower_onnx.lower_step(step, bounds_of(step.signature, MICRO_BATCH, 8))


@pytest.fixture(scope="module")
def inputs(step: TrainStep) -> StepArrays:
    dense = dict(step.extractor.named_parameters())
    weights = {name: dense[name].detach().numpy() for name in step.signature.dense_shapes}
    return {**weights, **random_step_inputs(step.signature, 8, MICRO_BATCH)}


def test_what_is_computed_again_gives_the_same_gradients(
    step: TrainStep, program: bytes, inputs: StepArrays
) -> None:
    session = onnxruntime.InferenceSession(program, providers=["CPUExecutionProvider"])
    ours = dict(zip(step.signature.outputs, session.run(None, inputs), strict=True))
    data = {spec.name: torch.from_numpy(inputs[spec.name]) for spec in step.signature.data}
    tables = [data[table].requires_grad_() for table in step.signature.table_dims]
    eager = step_outputs(step(*data.values()), [*step.trainable_tensors(), *tables])
    for name, expected in zip(step.signature.outputs, eager, strict=True):
        scale = float(expected.abs().max())
        np.testing.assert_allclose(ours[name], expected.detach().numpy(), atol=1e-4 * scale, err_msg=name)


def test_of_convolution_norm_and_activation_the_backward_pass_reads_the_convolution_alone(
    program: bytes,
) -> None:
    model = onnx.load_from_string(program)
    nodes, (loss, *_) = model.graph.node, model.graph.output
    forward = ancestors(nodes, loss.name)
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in onnx.shape_inference.infer_shapes(model).graph.value_info
    }
    read = {value for at, node in enumerate(nodes) if at not in forward for value in node.input}
    kept = [
        nodes[at].op_type
        for at in sorted(forward)
        for value in nodes[at].output
        if value in read and np.prod(shapes.get(value, [0])) >= MICRO_BATCH * CHANNELS * PIXELS**2
    ]
    assert kept == ["Conv"] * LAYERS


def test_the_runtime_computes_a_layers_gradients_before_it_goes_on_to_the_layer_before_it(
    step: TrainStep, program: bytes, inputs: StepArrays, tmp_path: Path
) -> None:
    """The profile has the order in which nodes were really run."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    optimised = tmp_path / "optimised.onnx"
    options.optimized_model_filepath = str(optimised)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)
    events = json.loads(Path(session.end_profiling()).read_text())
    suffix = "_kernel_time"
    run = [event["name"].removesuffix(suffix) for event in events if event["name"].endswith(suffix)]
    producer = {value: node.name for node in onnx.load(optimised).graph.node for value in node.output}
    at = {name: run.index(producer[gradient_of(name)]) for name in step.signature.dense_shapes}
    layers = [
        f"{kind}.{layer}.weight" for layer in reversed(range(LAYERS)) for kind in ("norms", "convolutions")
    ]
    assert [at[name] for name in layers] == sorted(at[name] for name in layers)
