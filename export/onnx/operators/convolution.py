"""Convolutions and their gradients as ATen has them; the forms that ONNX Runtime runs fastest are in
`dense_convolution.py` and `depthwise_convolution.py`.

A runtime for inference has no `convolution_backward`, but both gradients are linear maps that its other kernels compute.
The weights are graph inputs, so the runtime cannot repack them: what is fast for constant weights is not what is
fast here, and every choice was raced against the alternatives, on CPU time.

A line is an image of one row.  A transposed convolution is the gradient of a convolution in the other direction: its
forward pass is that one's ∂x, its ∂x that one's forward pass, and ∂w is the same with x and ∂y exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from export.onnx.graph import GraphBuilder
from export.onnx.operators import dense_convolution, depthwise_convolution
from export.onnx.operators.geometry import Geometry, Pair
from export.onnx.translation import Formulation, Translation, Value, refused, shape_of

aten = torch.ops.aten


def forward(graph: GraphBuilder, g: Geometry, x: str, w: str, bias: str | None, frozen: bool) -> str:
    """x [B, C, H, W] -> y [B, O, Ho, Wo]; `frozen`: the weight is a constant."""
    if depthwise_convolution.as_matrices(g) and bias is None and not frozen:
        return depthwise_convolution.forward(graph, g, x, w)
    return dense_convolution.forward(graph, g, x, w, bias, frozen)


def input_gradient(graph: GraphBuilder, g: Geometry, dy: str, w: str) -> str:
    """∂x [B, C, H, W]."""
    if depthwise_convolution.as_matrices(g):
        return depthwise_convolution.input_gradient(graph, g, dy, w)
    return dense_convolution.input_gradient(graph, g, dy, w)


def weight_gradient(graph: GraphBuilder, g: Geometry, dy: str, x: str) -> str:
    """∂w, of w's shape."""
    if g.depthwise and (g.dilation == (1, 1) or depthwise_convolution.as_matrices(g)):
        return depthwise_convolution.weight_gradient(graph, g, dy, x)
    return dense_convolution.weight_gradient(graph, g, dy, x)


def _convolution(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    w: fx.Node,
    bias: fx.Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
) -> Value:
    images = (node, x) if transposed else (x, node)
    g = _geometry(node, images, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    graph, bias_name = t.graph, None if bias is None else t.full(bias)
    x_name, w_name = _as_image(graph, t.full(x), x), _as_image(graph, t.full(w), w)
    if not transposed:
        name = forward(graph, g, x_name, w_name, bias_name, frozen=w.op == "get_attr")
        return Value(_as_traced(graph, name, node), shape_of(node))
    name = input_gradient(graph, g, x_name, w_name)
    if bias_name is not None:
        name = graph.add(name, graph.reshape(bias_name, -1, 1, 1))
    return Value(_as_traced(graph, name, node), shape_of(node))


def _convolution_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    w: fx.Node,
    _bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:
    images = (dy, x) if transposed else (x, dy)
    g = _geometry(node, images, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    graph = t.graph
    output, image = _as_image(graph, t.full(dy), dy), _as_image(graph, t.full(x), x)
    weight = _as_image(graph, t.full(w), w)
    dx = dw = d_bias = None
    if wanted[0] and transposed:
        dx = forward(graph, g, output, weight, None, frozen=False)
    elif wanted[0]:
        dx = input_gradient(graph, g, output, weight)
    if wanted[1]:
        dw = weight_gradient(graph, g, *((image, output) if transposed else (output, image)))
    if wanted[2]:
        d_bias = Value(graph.sum(output, 0, 2, 3), (shape_of(dy)[1],))
    return (
        None if dx is None else Value(_as_traced(graph, dx, x), shape_of(x)),
        None if dw is None else Value(_as_traced(graph, dw, w), shape_of(w)),
        d_bias,
    )


def _as_image(graph: GraphBuilder, name: str, node: fx.Node) -> str:
    shape = shape_of(node)
    return graph.reshape(name, *shape[:2], 1, shape[2]) if len(shape) == 3 else name


def _as_traced(graph: GraphBuilder, name: str, node: fx.Node) -> str:
    return graph.reshape(name, *shape_of(node)) if len(shape_of(node)) == 3 else name


def _geometry(
    node: fx.Node,
    images: tuple[fx.Node, fx.Node],
    w: fx.Node,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Geometry:
    """Of the convolution from the first of the images to the second."""
    x, y = (shape_of(image) for image in images)
    if len(x) not in (3, 4) or -1 in (*x, *y):
        raise refused(node, "convolutions are formulated for batches of images and of lines")
    return Geometry(
        batch=x[0],
        in_channels=x[1],
        out_channels=y[1],
        groups=groups,
        image=_pair(x[2:], 1),
        output=_pair(y[2:], 1),
        kernel=_pair(shape_of(w)[2:], 1),
        stride=_pair(stride, 1),
        padding=_pair(padding, 0),
        dilation=_pair(dilation, 1),
    )


def _pair(sizes: Sequence[int], of_a_line: int) -> Pair:
    if len(sizes) == 1:
        return of_a_line, sizes[0]
    return sizes[0], sizes[1]


FORMULATIONS: dict[object, Formulation] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
