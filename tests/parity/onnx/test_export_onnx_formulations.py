"""The ONNX formulations of convolution and GroupNorm, each against torch, over sizes that reach every branch."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional as F

from export.onnx.graph import GraphBuilder, Port
from export.onnx.operators import convolution as onnx_convolution
from export.onnx.operators import group_norm as onnx_group_norm
from export.onnx.operators.geometry import Geometry
from export.onnx.operators.group_norm import Grouping


def run(
    graph: GraphBuilder, inputs: dict[str, torch.Tensor], outputs: dict[str, str]
) -> dict[str, np.ndarray]:
    ports = [Port(name, tuple(tensor.shape)) for name, tensor in inputs.items()]
    model = graph.serialise("test", ports, [(Port(name, ()), value) for name, value in outputs.items()], {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results = session.run(None, {name: tensor.detach().numpy() for name, tensor in inputs.items()})
    return dict(zip(outputs, results, strict=True))


def assert_close(found: np.ndarray, expected: torch.Tensor, what: str) -> None:
    assert found.shape == tuple(expected.shape), what
    distance = np.linalg.norm(found - expected.detach().numpy()) / np.linalg.norm(expected.detach().numpy())
    assert distance < 2e-6, f"{what}: {distance}"


@pytest.mark.parametrize(
    ("channels", "out_channels", "groups", "image", "kernel", "stride", "padding"),
    [
        pytest.param(6, 10, 1, (9, 8), 1, 1, 0, id="pointwise, one product over the batch"),
        pytest.param(6, 10, 1, (3, 2), 1, 1, 0, id="pointwise, a few pixels"),
        pytest.param(6, 10, 1, (20, 18), 1, 1, 0, id="pointwise, one product an example"),
        pytest.param(6, 10, 1, (8, 9), 1, 2, 0, id="1 x 1, strided: dense"),
        pytest.param(8, 8, 8, (6, 7), 3, 1, 1, id="depthwise, whole matrix"),
        pytest.param(8, 8, 8, (7, 7), 5, 2, 2, id="depthwise, whole matrix, strided"),
        pytest.param(8, 8, 8, (12, 14), 3, 1, 1, id="depthwise, row phases"),
        pytest.param(8, 8, 8, (11, 13), 5, 1, 2, id="depthwise 5 x 5, a prime number of rows"),
        pytest.param(8, 8, 8, (24, 24), 5, 2, 2, id="depthwise 5 x 5, strided"),
        pytest.param(8, 8, 8, (13, 16), 3, 2, 1, id="depthwise, strided, odd rows"),
        pytest.param(8, 8, 8, (28, 30), 3, 1, 1, id="depthwise, shifted products"),
        pytest.param(8, 8, 8, (30, 28), 3, 1, 0, id="depthwise, shifted products, no padding"),
        pytest.param(3, 8, 1, (17, 16), 3, 2, 1, id="dense, strided"),
        pytest.param(3, 8, 1, (16, 17), 3, 2, 0, id="dense, strided, a column that no window reaches"),
        pytest.param(4, 8, 1, (9, 10), 5, 1, 2, id="dense 5 x 5"),
        pytest.param(16, 10, 1, (4, 3), 3, 1, 1, id="dense, patches forth and back, placed"),
        pytest.param(17, 10, 1, (7, 8), 3, 2, 1, id="dense, strided, patches"),
        pytest.param(17, 10, 1, (8, 7), 3, 1, 0, id="dense, patches back"),
        pytest.param(16, 10, 1, (12, 11), 3, 1, 1, id="dense, tap by tap"),
        pytest.param(16, 10, 1, (17, 16), 3, 2, 0, id="dense, strided, tap by tap"),
        pytest.param(16, 4, 1, (46, 45), 3, 1, 1, id="dense, flipped"),
        pytest.param(8, 12, 4, (9, 10), 3, 1, 1, id="grouped"),
    ],
)
def test_convolution_and_both_gradients(
    *,
    channels: int,
    out_channels: int,
    groups: int,
    image: tuple[int, int],
    kernel: int,
    stride: int,
    padding: int,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, channels, *image, requires_grad=True)
    w = torch.randn(out_channels, channels // groups, kernel, kernel, requires_grad=True)
    y = F.conv2d(x, w, stride=stride, padding=padding, groups=groups)
    dy = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, [x, w], dy)
    geometry = Geometry(
        batch=3,
        in_channels=channels,
        out_channels=out_channels,
        groups=groups,
        image=image,
        output=(y.shape[2], y.shape[3]),
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(padding, padding),
    )
    graph = GraphBuilder()
    found = run(
        graph,
        {"x": x, "w": w, "dy": dy},
        {
            "y": onnx_convolution.forward(graph, geometry, "x", "w", None, frozen=False),
            "dx": onnx_convolution.input_gradient(graph, geometry, "dy", "w"),
            "dw": onnx_convolution.weight_gradient(graph, geometry, "dy", "x"),
        },
    )
    for name, expected in {"y": y, "dx": dx, "dw": dw}.items():
        assert_close(found[name], expected, name)


def group_norm_input(kind: str, shape: tuple[int, int, int, int], groups: int) -> torch.Tensor:
    """Noise, or what a convolution makes of flat images: every group of one grey, but for its corner or its left half."""
    torch.manual_seed(1)
    if kind in ("centred", "off centre"):
        return torch.randn(shape) + (5.0 if kind == "off centre" else 0.0)
    x = torch.randn(shape[0], groups, 1, 1).repeat_interleave(shape[1] // groups, 1).repeat(1, 1, *shape[2:])
    if kind == "nearly flat":
        x[:, :, 0, 0] += 0.5
    if kind == "edge":
        x[..., : shape[3] // 2] += 0.5
    return x


@pytest.mark.parametrize("size", [1, 2, 7, 30, 96])
@pytest.mark.parametrize("kind", ["centred", "off centre", "flat", "nearly flat", "edge"])
def test_group_norm_and_its_gradients(size: int, kind: str) -> None:
    torch.manual_seed(0)
    shape, groups = (3, 16, size, size + 1), 8
    x = group_norm_input(kind, shape, groups).requires_grad_()
    scale, shift = (torch.randn(16, requires_grad=True) for _ in range(2))
    y = F.group_norm(x, groups, scale, shift)
    dy = torch.randn(shape)
    gradients = torch.autograd.grad(y, [x, scale, shift], dy)
    graph = GraphBuilder()
    grouping = Grouping(shape, groups)
    value, mean, inverse = onnx_group_norm.forward(graph, grouping, "x", "scale", "shift", 1e-5)
    back = onnx_group_norm.backward(graph, grouping, "dy", "x", "scale", mean=mean, inverse=inverse)
    outputs = (value, *back)
    names = ("y", "dx", "dscale", "dshift")
    found = run(
        graph,
        {"x": x, "scale": scale, "shift": shift, "dy": dy},
        dict(zip(names, outputs, strict=True)),
    )
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, scale, shift)]
    exact_y = F.group_norm(exact[0], groups, exact[1], exact[2])
    exact_gradients = torch.autograd.grad(exact_y, exact, dy.double())
    for name, expected, eager in zip(names, (exact_y, *exact_gradients), (y, *gradients), strict=True):
        # Where every group is flat ∂scale is 0, and the rounding of the mean is magnified by 1/√ε = 316.
        size_of = expected if kind != "flat" or name != "dscale" else exact_gradients[2]
        scale_of = float(torch.linalg.vector_norm(size_of.detach()))
        distance = np.linalg.norm(found[name] - expected.detach().numpy()) / scale_of
        own = float(torch.linalg.vector_norm((eager.double() - expected).detach())) / scale_of
        assert distance < max(6e-5 if kind == "flat" else 5e-6, 3 * own), name


def test_a_constant_image_does_not_break_group_norm() -> None:
    """However the variance is computed, it must not come out negative."""
    torch.manual_seed(0)
    shape, groups = (32, 8, 9, 9), 8  # 256 groups, each of one grey: for some of them the rounding goes down
    x = (1000 * torch.rand(32, 8, 1, 1)).expand(shape).contiguous()
    graph = GraphBuilder()
    value, _, inverse = onnx_group_norm.forward(graph, Grouping(shape, groups), "x", "scale", "shift", 1e-5)
    found = run(
        graph, {"x": x, "scale": torch.ones(8), "shift": torch.zeros(8)}, {"y": value, "inverse": inverse}
    )
    assert np.isfinite(found["y"]).all()
    assert np.isfinite(found["inverse"]).all()
