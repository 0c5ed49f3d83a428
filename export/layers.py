"""Which layer of the network every operator of a traced step belongs to: the path of a module, as `named_modules` has it.

`make_fx` writes operators down one after the other and knows nothing of modules, so hooks on the modules say where the
forward pass is, and hooks on autograd's nodes say whose gradient the backward pass is computing.  Whenever that changes,
the operators written since the last change get their label, in the one field of a node (`custom`) that `torch.export`
and ExecuTorch's passes carry along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

OUTSIDE = "objective"
"""Where no module of the extractor is at work: the loss over the sampled rows."""
EXTRACTOR = "extractor"
"""What the extractor does itself, and none of its modules: pixels, pooling."""
_FIELD = "custom"
_LAYER, _BACKWARD = "fedss_layer", "fedss_backward"


def set_label(node: fx.Node, layer: str, backward: bool) -> None:
    node.meta[_FIELD] = {**node.meta.get(_FIELD, {}), _LAYER: layer, _BACKWARD: backward}


def copy_label(node: fx.Node, source: fx.Node) -> None:
    """For a node that takes the place of another."""
    if _FIELD in source.meta:
        node.meta[_FIELD] = source.meta[_FIELD]


def label_of(node: fx.Node) -> tuple[str, bool] | None:
    """The layer, and whether the node is of the backward pass; None for what no layer wrote."""
    label = node.meta.get(_FIELD, {})
    return (label[_LAYER], label[_BACKWARD]) if _LAYER in label else None


class LayerLabels:
    """Labels the graph that is being traced inside `with labels.of(step)`."""

    def __init__(self) -> None:
        self._layers = [OUTSIDE]
        self._backward = False
        self._last: fx.Node | None = None
        self._claimed: set[object] = set()

    @contextmanager
    def of(self, step: nn.Module) -> Iterator[None]:
        hooks = []
        for name, module in step.named_modules():
            layer = name.removeprefix(f"{EXTRACTOR}.") or OUTSIDE
            hooks.append(module.register_forward_pre_hook(self._entering(layer)))
            hooks.append(module.register_forward_hook(self._leaving))
        try:
            yield
            self._label_new()
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, layer: str) -> Any:
        def enter(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
            self._label_new()
            self._claim(arguments)
            self._layers.append(layer)

        return enter

    def _leaving(self, _module: nn.Module, _arguments: tuple[Any, ...], output: Any) -> None:
        self._label_new()
        self._claim(output if isinstance(output, (tuple, list)) else [output])
        self._layers.pop()

    def _claim(self, made: Iterable[Any]) -> None:
        """The gradients of what was computed since the last claim are those of the layer at work."""
        layer = self._layers[-1]
        waiting = [value.grad_fn for value in made if isinstance(value, Tensor)]
        while waiting:
            node = waiting.pop()
            if node is None or node in self._claimed:
                continue
            self._claimed.add(node)
            node.register_prehook(lambda _gradients: self._differentiating(layer))
            waiting += [before for before, _ in node.next_functions]

    def _differentiating(self, layer: str) -> None:
        self._label_new()
        self._backward = True
        self._layers = [layer]

    def _label_new(self) -> None:
        """Operators that were written since the last call."""
        newest = _newest()
        for node in _written_since(self._last, newest):
            set_label(node, self._layers[-1], self._backward)
        self._last = newest


class CarriedLabels(fx.Interpreter):
    """Runs a labelled graph while `make_fx` traces it once more: what a node becomes has the node's label."""

    def run_node(self, n: fx.Node) -> Any:
        before = _newest()
        result = super().run_node(n)
        for node in _written_since(before, _newest()):
            copy_label(node, n)
            node.stack_trace = n.stack_trace
        return result


def _newest() -> fx.Node | None:
    """The last operator of the graph that is being traced."""
    mode = get_proxy_mode()
    assert mode is not None, "layers are labelled while make_fx traces"
    graph: fx.Graph = mode.tracer.graph
    return next(reversed(graph.nodes), None)


def _written_since(last: fx.Node | None, newest: fx.Node | None) -> Iterator[fx.Node]:
    node = newest
    while node is not None and node is not last and node.op != "root":
        yield node
        node = node.prev
