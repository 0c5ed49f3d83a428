"""Rewrites the joint ATen graph of `export.trace` into the operators of `ondevice/native`.

Two things change, and the mathematics is not one of them.

*Layout.*  Activations and their gradients, [B, C, H, W] to torch, lie as planes [C, B, H, W], so that a 1x1 convolution and
both of its gradients are single matrix products.  Images keep the layout they arrive in.

*Nothing that is cheap to recompute is stored.*  While the rewrite walks the graph, what it knows of a tensor is often a
formula and not yet a node: `Value` is activation(GroupNorm(x)), `PerPlane` a vector spread over planes, `PlaneGradient`
planes * scale + shift.  Operators that can read the formula take it as it is; for the others it is materialised, once in
the forward pass and again in the backward pass, so that between the two only the outputs of the convolutions are kept.

A new operator is a method with a line in `_RULES`.  One that touches no planes needs nothing: it is copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import fx

from export.lower_executorch_operators import Activation

aten = torch.ops.aten
fedss = torch.ops.fedss


class UnsupportedOperator(ValueError):
    """The graph has an operator that the ExecuTorch lowering has no formulation for."""


@dataclass(frozen=True)
class Planes:
    """A node that lies as [C, B, H, W]."""

    node: fx.Node


@dataclass(frozen=True)
class Value:
    """activation(GroupNorm(x)), with x a node that lies as [C, B, H, W]."""

    x: fx.Node
    moments: fx.Node
    gamma: fx.Node
    beta: fx.Node
    activation: Activation = Activation.NONE

    def arguments(self) -> tuple[Any, ...]:
        return self.x, self.moments, self.gamma, self.beta, int(self.activation)


@dataclass(frozen=True)
class Gated:
    """A value times a number a plane: squeeze-and-excite."""

    value: Value
    gate: fx.Node
    """[B, C]"""


@dataclass(frozen=True)
class PerPlane:
    """A [B, C] vector seen as [B, C, 1, 1], or spread to [B, C, H, W]."""

    vector: fx.Node


@dataclass(frozen=True)
class PlaneGradient:
    """planes * scale + shift, any of them absent; scale and shift are [B, C]."""

    planes: fx.Node | None
    scale: fx.Node | None = None
    shift: fx.Node | None = None


@dataclass(frozen=True)
class ThroughActivation:
    """gradient * activation'(GroupNorm(x)) of a `Value`."""

    gradient: PlaneGradient
    value: Value


@dataclass(frozen=True)
class GradientTimesValue:
    """The product of planes and a value, of which the graph only wants the sums over planes."""

    planes: fx.Node
    value: Value


@dataclass(frozen=True)
class Transposed:
    """A matrix read the other way round; free where it meets a product."""

    node: fx.Node


_ON_PLANES = (Planes, Value, Gated, PerPlane, PlaneGradient, ThroughActivation, GradientTimesValue)


def rewrite(traced: fx.GraphModule) -> fx.GraphModule:
    """The same program in operators of ours; placeholders, outputs and their order stay."""
    return _Rewrite(traced).run()


class _Rewrite:
    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._graph = fx.Graph()
        self._known: dict[fx.Node, Any] = {}
        self._in_backward = False
        self._materialised: dict[tuple[Any, bool], fx.Node] = {}
        self._at: fx.Node = next(iter(traced.graph.nodes))

    def run(self) -> fx.GraphModule:
        nodes = list(self._traced.graph.nodes)
        outputs: Any = nodes[-1].args[0]
        first_output = outputs[0]
        while first_output.target is aten.detach.default:
            first_output = first_output.args[0]
        for node in nodes:
            self._at = node
            self._known[node] = self._translate(node)
            self._in_backward = self._in_backward or node is first_output  # the loss ends the forward pass
        self._graph.lint()
        self._graph.eliminate_dead_code()
        return fx.GraphModule(self._traced, self._graph)

    def _translate(self, node: fx.Node) -> Any:
        if node.op == "output":
            results: Any = node.args[0]
            return self._graph.output([self._plain(self._known[result]) for result in results])
        if node.op != "call_function":
            return self._graph.node_copy(node)
        if node.target is operator.getitem:
            outputs, at = node.args
            assert isinstance(outputs, fx.Node)
            return self._known[outputs][at]
        arguments = [self._known[given] if isinstance(given, fx.Node) else given for given in node.args]
        if node.target in _RULES:
            result = _RULES[node.target](self, *arguments)
            if result is not NotImplemented:
                return result
        if any(isinstance(argument, _ON_PLANES) for argument in arguments):
            self._refuse()
        return self._graph.node_copy(node, lambda argument: self._plain(self._known[argument]))

    def _refuse(self, why: str = "") -> NoReturn:
        raise UnsupportedOperator(
            f"the ExecuTorch lowering has no formulation for {self._at.target} {why or _described(self._at)}; "
            "add a rule to export/lower_executorch_graph.py, or export for another runtime"
        )

    def _emit(self, target: Any, *arguments: Any) -> fx.Node:
        return self._graph.call_function(target, arguments)

    def _contiguous(self, node: fx.Node) -> fx.Node:
        """Laid out as its shape says: the kernels know no strides."""
        return self._graph.call_function(
            aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
        )

    # From formulas to nodes.

    def _plain(self, known: Any) -> fx.Node:
        """A node in torch's own layout."""
        if isinstance(known, Transposed):
            return self._contiguous(self._emit(aten.t.default, known.node))
        if not isinstance(known, fx.Node):
            self._refuse(f"on {known}")
        return known

    def _planes(self, known: Any) -> fx.Node:
        """A node that lies as [C, B, H, W]."""
        if isinstance(known, Planes):
            return known.node
        if isinstance(known, Value):
            known = Gated(known, None)  # type: ignore[arg-type]  # no gate: `materialise` takes None for it
        if isinstance(known, Gated):
            key = (known, self._in_backward)
            if key not in self._materialised:
                self._materialised[key] = self._emit(
                    fedss.materialise.default, *known.value.arguments(), known.gate, None
                )
            return self._materialised[key]
        if isinstance(known, PerPlane):
            known = PlaneGradient(None, shift=known.vector)
        if isinstance(known, PlaneGradient):
            return self._spread(known)
        return self._refuse(f"on {known}")

    def _spread(self, gradient: PlaneGradient) -> fx.Node:
        """planes * scale + shift in ATen operators, where no kernel of ours takes the formula."""
        batch, channels, height, width = self._at.meta["val"].shape

        def as_planes(vector: fx.Node) -> fx.Node:
            turned = self._contiguous(self._emit(aten.t.default, vector))
            column = self._emit(aten.view.default, turned, [channels, batch, 1, 1])
            return self._contiguous(self._emit(aten.expand.default, column, [channels, batch, height, width]))

        result = gradient.planes
        if result is not None and gradient.scale is not None:
            result = self._emit(aten.mul.Tensor, result, as_planes(gradient.scale))
        if gradient.shift is None:
            assert result is not None
            return result
        shift = as_planes(gradient.shift)
        return shift if result is None else self._emit(aten.add.Tensor, result, shift)

    def _gradient(self, known: Any) -> PlaneGradient:
        if isinstance(known, PlaneGradient):
            return known
        if isinstance(known, PerPlane):
            return PlaneGradient(None, shift=known.vector)
        return PlaneGradient(self._planes(known))

    def _value_arguments(self, known: Any) -> tuple[Any, ...]:
        """x, moments, gamma, beta, activation: the formula itself if it is one, else the planes as they are."""
        if isinstance(known, Value):
            return known.arguments()
        return self._planes(known), None, None, None, int(Activation.NONE)

    # Convolutions.

    def convolution(
        self, x: Any, weight: fx.Node, bias: Any, stride: Any, padding: Any, *rest: Any
    ) -> Planes:
        match self._kind(weight, stride, padding, *rest):
            case "pointwise" if x is not None and not isinstance(x, fx.Node):
                return Planes(self._emit(fedss.pointwise.default, self._planes(x), weight, bias))
            case "depthwise":
                if bias is not None:
                    self._refuse("depthwise with a bias")
                return Planes(
                    self._emit(fedss.depthwise.default, *self._value_arguments(x), weight, stride[0])
                )
        image, batch_first = self._dense_input(x)
        return Planes(
            self._emit(fedss.convolution.default, image, weight, bias, stride[0], padding[0], batch_first)
        )

    def convolution_backward(
        self, gradient: Any, x: Any, weight: fx.Node, _bias_size: Any, stride: Any, padding: Any, *rest: Any
    ) -> tuple[Any, Any, Any]:
        *geometry, (wants_x, wants_weight, wants_bias) = rest
        kind = self._kind(weight, stride, padding, *geometry)
        if kind == "pointwise" and isinstance(x, fx.Node):
            kind = "dense"
        g = self._planes(gradient)
        x_gradient = weight_gradient = bias_gradient = None
        kernel = _shape(self._at.args[2])[2]
        height, width = _shape(self._at.args[1])[2:]
        # The weight's gradient first: the input that is recomputed for it is gone before the input's gradient comes.
        if wants_weight:
            if kind == "pointwise":
                weight_gradient = self._emit(fedss.pointwise_weight_gradient.default, g, self._planes(x))
            elif kind == "depthwise":
                weight_gradient = self._emit(
                    fedss.depthwise_weight_gradient.default, g, *self._value_arguments(x), kernel, stride[0]
                )
            else:
                image, batch_first = self._dense_input(x)
                weight_gradient = self._emit(
                    fedss.convolution_weight_gradient.default,
                    g,
                    image,
                    kernel,
                    stride[0],
                    padding[0],
                    batch_first,
                )
        if wants_bias:
            bias_gradient = self._emit(fedss.channel_sums.default, g)
        if wants_x:
            if kind == "pointwise":
                node = self._emit(fedss.pointwise_input_gradient.default, g, weight, None)
            elif kind == "depthwise":
                node = self._emit(fedss.depthwise_input_gradient.default, g, weight, stride[0], height, width)
            else:
                node = self._emit(
                    fedss.convolution_input_gradient.default, g, weight, stride[0], padding[0], height, width
                )
            x_gradient = Planes(node)
        return x_gradient, weight_gradient, bias_gradient

    def _kind(
        self,
        weight: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        _out_padding: Any,
        groups: int,
    ) -> str:
        is_backward = self._at.target is aten.convolution_backward.default
        out_channels, in_channels, height, width = _shape(self._at.args[2 if is_backward else 1])
        square = height == width and len(set(stride)) == len(set(padding)) == 1
        if transposed or set(dilation) != {1} or not square:
            self._refuse(
                f"with stride {stride}, padding {padding}, dilation {dilation}, transposed {transposed}"
            )
        if groups == 1:
            return "pointwise" if (height, stride[0], padding[0]) == (1, 1, 0) else "dense"
        depthwise = groups == out_channels and in_channels == 1
        if not depthwise or height not in (3, 5) or stride[0] not in (1, 2) or padding[0] != height // 2:
            self._refuse(
                f"with {groups} groups, kernel {height}, stride {stride[0]}, padding {padding[0]}, {weight}"
            )
        return "depthwise"

    def _dense_input(self, x: Any) -> tuple[fx.Node, bool]:
        """The node to convolve, and whether it is the step's images, which lie as [B, C, H, W]."""
        return (x, True) if isinstance(x, fx.Node) else (self._planes(x), False)

    # GroupNorm and activations.

    def group_norm(
        self,
        x: Any,
        gamma: Any,
        beta: Any,
        _batch: int,
        _channels: int,
        _plane: int,
        groups: int,
        epsilon: float,
    ) -> tuple[Value, Value, Value]:
        planes = self._planes(x)
        moments = self._emit(fedss.group_moments.default, planes, groups, epsilon)
        value = Value(planes, moments, gamma, beta)
        return (
            value,
            value,
            value,
        )  # whoever reads mean and deviation, the backward pass, finds the value by them

    def group_norm_backward(
        self, gradient: Any, _x: Any, value: Value, *_rest: Any
    ) -> tuple[Planes, fx.Node, fx.Node]:
        if isinstance(gradient, ThroughActivation):
            if replace(gradient.value, activation=Activation.NONE) != value:
                self._refuse("after the activation of another GroupNorm")
            value, gradient = gradient.value, gradient.gradient
        else:
            gradient = self._gradient(gradient)
        node = self._emit(
            fedss.group_norm_gradient.default,
            gradient.planes,
            gradient.scale,
            gradient.shift,
            *value.arguments(),
        )
        outputs = [self._emit(operator.getitem, node, i) for i in range(3)]
        return Planes(outputs[0]), outputs[1], outputs[2]

    def _activation(self, x: Any, activation: Activation) -> Any:
        if isinstance(x, Value) and x.activation is Activation.NONE:
            return replace(x, activation=activation)
        if isinstance(x, _ON_PLANES):
            return Planes(self._emit(fedss.activate.default, self._planes(x), int(activation)))
        return self._emit(fedss.activate.default, self._plain(x), int(activation))

    def _activation_backward(self, gradient: Any, x: Any, activation: Activation) -> Any:
        """`x` is the activation's input, or its output where that tells as much (ReLU)."""
        if isinstance(x, Value) and x.activation in (Activation.NONE, activation):
            return ThroughActivation(self._gradient(gradient), replace(x, activation=activation))
        if isinstance(x, _ON_PLANES):
            arguments = (self._planes(gradient), self._planes(x), int(activation))
            return Planes(self._emit(fedss.activation_gradient.default, *arguments))
        return self._emit(
            fedss.activation_gradient.default, self._plain(gradient), self._plain(x), int(activation)
        )

    def threshold_backward(self, gradient: Any, output: Any, threshold: float) -> Any:
        if threshold != 0:
            self._refuse(f"with threshold {threshold}")
        return self._activation_backward(gradient, output, Activation.RELU)

    # Pooling, squeeze-and-excite, shortcuts.

    def mean(self, x: Any, dims: Any, keepdim: bool = False) -> Any:
        if not isinstance(x, (Planes, Value)):
            return NotImplemented
        if sorted(dim % 4 for dim in dims) != [2, 3]:
            self._refuse(f"over dimensions {dims}")
        pooled = self._emit(fedss.pooled_mean.default, *self._value_arguments(x))
        return PerPlane(pooled) if keepdim else pooled

    def multiply(self, a: Any, b: Any) -> Any:
        for one, other in ((a, b), (b, a)):
            match one, other:
                case Value(), PerPlane():
                    return Gated(one, other.vector)
                case Planes(), PerPlane():
                    return PlaneGradient(one.node, scale=other.vector)
                case Planes(), Value():
                    return GradientTimesValue(one.node, other)
        return NotImplemented

    def sum_over(self, x: Any, dims: Any, keepdim: bool = False) -> Any:
        if not isinstance(x, GradientTimesValue):
            return NotImplemented
        if sorted(dim % 4 for dim in dims) != [2, 3]:
            self._refuse(f"over dimensions {dims}")
        pooled = self._emit(fedss.pooled_product.default, x.planes, *x.value.arguments())
        return PerPlane(pooled) if keepdim else pooled

    def add(self, a: Any, b: Any) -> Any:
        for one, other in ((a, b), (b, a)):
            match one, other:
                case PlaneGradient(shift=None), PerPlane():
                    return replace(one, shift=other.vector)
                case Value(), Planes() | Value() | Gated():
                    if one is b and isinstance(a, Value):
                        continue  # of two values the left one, the shortcut, is the one that others read too
                    residual = self._planes(other)
                    return Planes(self._emit(fedss.materialise.default, *one.arguments(), None, residual))
        if isinstance(a, Planes) and isinstance(b, Planes):
            return Planes(self._add_planes(a.node, b.node))
        if isinstance(a, _ON_PLANES) or isinstance(b, _ON_PLANES):
            return Planes(self._emit(aten.add.Tensor, self._planes(a), self._planes(b)))
        return NotImplemented

    def _add_planes(self, a: fx.Node, b: fx.Node) -> fx.Node:
        """A gradient that joins another one: the product that makes it starts from the other instead of from 0."""
        last: fx.Node = next(reversed(self._graph.nodes))
        for product, other in ((a, b), (b, a)):
            if (
                product is last
                and product.target is fedss.pointwise_input_gradient.default
                and product.args[2] is None
            ):
                product.args = (*product.args[:2], other)
                return product
        return self._emit(aten.add.Tensor, a, b)

    def unsqueeze(self, x: Any, dim: int) -> Any:
        rank = self._at.meta["val"].dim()
        if isinstance(x, PerPlane) or (isinstance(x, fx.Node) and rank == 3 and dim in (2, -1)):
            return PerPlane(x.vector if isinstance(x, PerPlane) else x)
        return NotImplemented

    def squeeze(self, x: Any, _dim: int) -> Any:
        if isinstance(x, GradientTimesValue):  # planes of one element: torch left out the sum over them
            x = self.sum_over(x, [2, 3], keepdim=True)
        if not isinstance(x, PerPlane):
            return NotImplemented
        return x.vector if self._at.meta["val"].dim() == 2 else x

    def expand(self, x: Any, _sizes: Any) -> Any:
        return x if isinstance(x, PerPlane) else NotImplemented

    def divide(self, x: Any, by: float) -> Any:
        if not isinstance(x, PerPlane):
            return NotImplemented
        return PerPlane(self._emit(aten.mul.Scalar, x.vector, 1.0 / by))

    def max_pool(
        self,
        x: Any,
        kernel: Any,
        stride: Any = (),
        padding: Any = (0, 0),
        dilation: Any = (1, 1),
        ceil: bool = False,
    ) -> tuple[Planes, None]:
        window = self._window(kernel, stride, padding, dilation, ceil)
        return Planes(self._emit(fedss.max_pool.default, self._planes(x), *window)), None

    def max_pool_backward(
        self,
        gradient: Any,
        x: Any,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil: bool,
        _indices: Any,
    ) -> Planes:
        window = self._window(kernel, stride, padding, dilation, ceil)
        arguments = (self._planes(gradient), self._planes(x), *window)
        return Planes(self._emit(fedss.max_pool_gradient.default, *arguments))

    def _window(
        self, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
    ) -> tuple[int, int, int]:
        stride = stride or kernel
        if ceil or set(dilation) != {1} or any(len(set(sizes)) != 1 for sizes in (kernel, stride, padding)):
            self._refuse(
                f"with kernel {kernel}, stride {stride}, padding {padding}, dilation {dilation}, ceil {ceil}"
            )
        return kernel[0], stride[0], padding[0]

    # Matrices and shapes.

    def transpose(self, x: Any) -> Any:
        return x.node if isinstance(x, Transposed) else Transposed(self._plain(x))

    def product(self, a: Any, b: Any, start: Any = None) -> fx.Node:
        flags = [isinstance(matrix, Transposed) for matrix in (a, b)]
        nodes: list[fx.Node] = [
            matrix.node if isinstance(matrix, Transposed) else self._plain(matrix) for matrix in (a, b)
        ]
        return self._emit(fedss.product.default, *nodes, *flags, start)

    def view(self, x: Any, sizes: Any) -> Any:
        """Between planes and what torch flattens them to, the batch comes first."""
        if isinstance(x, _ON_PLANES):
            turned = self._emit(aten.permute.default, self._planes(x), [1, 0, 2, 3])
            return self._emit(aten.view.default, self._contiguous(turned), sizes)
        if len(sizes) == 4:
            turned = self._emit(
                aten.permute.default, self._emit(aten.view.default, self._plain(x), sizes), [1, 0, 2, 3]
            )
            return Planes(self._contiguous(turned))
        return NotImplemented


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _described(node: fx.Node) -> str:
    return "on " + ", ".join(
        str(list(_shape(argument))) for argument in node.all_input_nodes if "val" in argument.meta
    )


_RULES: dict[Any, Callable[..., Any]] = {
    aten.detach.default: lambda _rewrite, x: x,
    aten.convolution.default: _Rewrite.convolution,
    aten.convolution_backward.default: _Rewrite.convolution_backward,
    aten.native_group_norm.default: _Rewrite.group_norm,
    aten.native_group_norm_backward.default: _Rewrite.group_norm_backward,
    aten.relu.default: lambda rewrite, x: rewrite._activation(x, Activation.RELU),
    aten.hardswish.default: lambda rewrite, x: rewrite._activation(x, Activation.HARDSWISH),
    aten.hardsigmoid.default: lambda rewrite, x: rewrite._activation(x, Activation.HARDSIGMOID),
    aten.threshold_backward.default: _Rewrite.threshold_backward,
    aten.hardswish_backward.default: lambda rewrite, g, x: rewrite._activation_backward(
        g, x, Activation.HARDSWISH
    ),
    aten.hardsigmoid_backward.default: lambda rewrite, g, x: rewrite._activation_backward(
        g, x, Activation.HARDSIGMOID
    ),
    aten.mean.dim: _Rewrite.mean,
    aten.mul.Tensor: _Rewrite.multiply,
    aten.sum.dim_IntList: _Rewrite.sum_over,
    aten.add.Tensor: _Rewrite.add,
    aten.unsqueeze.default: _Rewrite.unsqueeze,
    aten.squeeze.dim: _Rewrite.squeeze,
    aten.expand.default: _Rewrite.expand,
    aten.div.Scalar: _Rewrite.divide,
    aten.max_pool2d_with_indices.default: _Rewrite.max_pool,
    aten.max_pool2d_with_indices_backward.default: _Rewrite.max_pool_backward,
    aten.t.default: _Rewrite.transpose,
    aten.mm.default: _Rewrite.product,
    aten.addmm.default: lambda rewrite, start, a, b: rewrite.product(a, b, start),
    aten.view.default: _Rewrite.view,
}
