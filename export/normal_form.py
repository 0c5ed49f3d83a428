"""The normal form of a traced step: what a lowering may rely on, whatever the network was written in.

*Nothing is written in place.*  Networks do (`relu_`, `add_`, writes into slices); the graph has the functional operators.

*Nothing is computed for its memory layout alone.*  Copies and aliases (`clone`, `alias`, `detach`, `lift_fresh_copy`,
`contiguous`, `as_strided` that changes nothing) are gone.  `view` is a view of its argument as it lies; `reshape`
stands where torch would have to copy first.  Every node's `meta["val"]` has the shape, type and strides of this graph.

*Operators are of the core ATen set, or whole.*  The composites of `decompositions.WHOLE` stay as torch dispatches them, for
the lowerings to recognise, each with its gradient.  What is neither is decomposed by torch's own table, so the rare tail
needs no formulation of its own.  An operator without a decomposition stays, for the lowering to refuse by name.

*BatchNorm with given statistics has one name*, `_native_batch_norm_legit_no_training`, of which only the first output is
read; its gradient is `native_batch_norm_backward` with `train=False`, and takes neither saved moment.  BatchNorm over the
statistics of its own input (of weights, in some networks) is decomposed.

*Bags of embeddings are written out*: rows read, times their shares, summed.

*Nothing is asserted about values*: the clients check what they are given.

*What does not depend on an input is a constant* (`get_attr`): masks, positions, indices that the network computes itself.
Frozen parameters stay as they are and are not computed with beforehand.  An `expand` of a constant stays an operator, as
does a fresh tensor of one number (`full`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

from export.bags import write_out_bags
from export.decompositions import SAME_VALUE, VIEWS, decompositions, has_to_change
from export.graph_constants import fold_constants
from export.layers import CarriedLabels

aten = torch.ops.aten
ASSERTIONS = (aten._assert_async.msg, aten._assert_async.default)


def functional(traced: fx.GraphModule) -> fx.GraphModule:
    """The graph traced once more where it has to be: writes in place made operators that give a new tensor, and what is
    neither core nor whole decomposed.  Any other graph is left as it stands, to the last name."""
    _drop_guards(traced.graph)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    return _retraced(traced) if any(has_to_change(target) for target in targets) else traced


def simplify(traced: fx.GraphModule, parameters: Collection[str]) -> None:
    """Drop copies, and compute what does not depend on an input; `parameters` are constants that stay as they are."""
    _drop_assertions(traced.graph)
    if _drop_copies(traced.graph):
        _propagate(traced)
    fold_constants(traced, parameters)
    write_out_bags(traced)


def _drop_guards(graph: fx.Graph) -> None:
    """Attention guards its softmax against rows that are masked throughout; products that no mask was added to have none."""
    for node in graph.nodes:
        if node.target is aten._safe_softmax.default:
            source = node.args[0]
            while source.target in (*VIEWS, aten.expand.default):
                source = source.args[0]
            if source.target in (aten.bmm.default, aten.mm.default):
                node.target, node.args, node.kwargs = aten._softmax.default, (*node.args[:2], False), {}


def _drop_assertions(graph: fx.Graph) -> None:
    """What torch asserts about values while it runs (`one_hot` does): no runtime has it, and the clients check ranges."""
    assertions = [node for node in graph.nodes if node.target in ASSERTIONS]
    for node in assertions:
        graph.erase_node(node)
    if assertions:
        graph.eliminate_dead_code()


def _retraced(traced: fx.GraphModule) -> fx.GraphModule:
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    values = [node.meta["val"] for node in placeholders]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    labelled = _Retracing(traced)

    def run(*inputs: Tensor) -> list[Any]:
        with ExitStack() as stack:
            stack.callback(torch._disable_functionalization)
            torch._enable_functionalization(reapply_views=True)
            outputs = labelled.run(*(torch._to_functional_tensor(value) for value in inputs))
            return [_unwrapped(output) for output in outputs]

    with torch.no_grad(), mode, enable_python_dispatcher():
        again = make_fx(run, decomposition_table=decompositions(), _allow_non_fake_inputs=True)(*values)
    for old, new in zip(placeholders, again.graph.nodes, strict=False):
        new.target = new.name = old.name
        new.meta = {**old.meta, "val": new.meta["val"]}
    again.graph.set_codegen(fx.graph.CodeGen())
    return again


class _Retracing(CarriedLabels):
    """An operator that is decomposed may lay its output otherwise than it did whole, and forbid a view of it."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super().call_function(target, args, kwargs)
        except (ValueError, RuntimeError):
            if target is not aten.view.default:
                raise
            return aten.reshape.default(*args)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Tensor) and torch._is_functional_tensor(value):
        torch._sync(value)  # type: ignore[attr-defined,no-untyped-call]
        return torch._from_functional_tensor(value)
    return value


def _drop_copies(graph: fx.Graph) -> bool:
    """Whether strides may have changed by it."""
    changed = False
    for node in list(graph.nodes):
        source = _same_value(node)
        if source is not None:
            changed = changed or node.target is not aten.detach.default
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif node.target in VIEWS[1:]:
            node.target = VIEWS[0]
            changed = True
    return changed


def _same_value(node: fx.Node) -> fx.Node | None:
    """The node whose value this one merely repeats."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if node.target in SAME_VALUE:
        return source
    if node.target is aten.as_strided.default:
        if source.target is aten.as_strided_scatter.default and _places(source, 2) == _places(node, 1):
            return _reads_what_was_written(node, source)
        if _lies_the_same(node.meta["val"], source.meta["val"]):
            return source
    if node.target is aten.as_strided_scatter.default and isinstance(node.args[1], fx.Node):
        written = node.args[1]
        if _lies_the_same(node.meta["val"], written.meta["val"]):
            return written
    if node.target is aten.copy.default and isinstance(node.args[1], fx.Node):
        value, written = node.meta["val"], node.args[1].meta["val"]
        if value.shape == written.shape and value.dtype == written.dtype:
            return node.args[1]
    return None


def _places(node: fx.Node, first: int) -> tuple[object, ...]:
    """Which places of memory `as_strided` and its relatives speak of: a dimension of size 1 adds none."""
    sizes, strides, *offset = node.args[first:]
    assert isinstance(sizes, Sequence)
    assert isinstance(strides, Sequence)
    moves = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return (*moves, *(offset or [None]))


def _reads_what_was_written(node: fx.Node, scatter: fx.Node) -> fx.Node:
    """The value that was written, in the shape that is read."""
    written = scatter.args[1]
    assert isinstance(written, fx.Node)
    with node.graph.inserting_before(node):
        view = node.graph.call_function(aten.view.default, (written, list(node.meta["val"].shape)))
    view.meta = dict(node.meta)
    return view


def _lies_the_same(one: Tensor, other: Tensor) -> bool:
    """Whether the same place holds the same entry; the stride of a dimension of size 1 means nothing."""
    return one.shape == other.shape and all(
        size == 1 or stride == other_stride
        for size, stride, other_stride in zip(one.shape, one.stride(), other.stride(), strict=True)
    )


class _Propagation(fx.Interpreter):
    """Shapes and strides of the graph as it is now; a view that its argument's strides forbid becomes a `reshape`."""

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr":
            return n.meta["val"]
        if n.target is aten.view.default:
            arguments, _ = self.fetch_args_kwargs_from_env(n)
            try:
                result = aten.view.default(*arguments)
            except (ValueError, RuntimeError):
                n.target = aten.reshape.default
                result = aten.reshape.default(*arguments)
        else:
            result = super().run_node(n)
        if n.op == "call_function":
            n.meta["val"] = result
        return result


def _propagate(traced: fx.GraphModule) -> None:
    values = [node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder"]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    with torch.no_grad(), mode, enable_python_dispatcher():
        _Propagation(traced).run(*values)
