"""Bags of embeddings (`nn.EmbeddingBag`) written out: rows that are read, times their shares, summed; and the gradients.

No runtime has the composites' gradients.  The bags have to be equally long, which ids [b, n] are: where each begins is a
constant of the graph by the time that this runs.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from export.layers import copy_label
from export.refusal import unsupported

aten = torch.ops.aten

FORWARD = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
TABLE_GRADIENT = aten._embedding_bag_backward.default
WEIGHTS_GRADIENT = aten._embedding_bag_per_sample_weights_backward.default
SUM, MEAN = 0, 1
"""ATen's numbers of the modes; the largest of a bag is the third."""


def write_out_bags(traced: fx.GraphModule) -> None:
    """Raises UnsupportedOperator for bags of other kinds."""
    bags = [
        node for node in traced.graph.nodes if node.target in (*FORWARD, TABLE_GRADIENT, WEIGHTS_GRADIENT)
    ]
    for node in bags:
        with traced.graph.inserting_before(node):
            if node.target in FORWARD:
                table, ids, offsets, *options = _arguments(node, 9)
                _by_frequency, mode, _sparse, weights, last_offset, padding = options
                bag = _bag(node, ids, offsets, mode=mode, weights=weights, padding=padding)
                if last_offset:
                    raise _refused(node, "include_last_offset has no formulation")
                _replace_output(node, _total(bag, table))
            elif node.target is TABLE_GRADIENT:
                gradient, ids, offsets, _bag_of, _sizes, _largest, rows, *options = _arguments(node, 12)
                by_frequency, mode, _sparse, weights, padding = options
                bag = _bag(node, ids, offsets, mode=mode, weights=weights, padding=padding)
                if by_frequency:
                    raise _refused(node, "scale_grad_by_freq has no formulation")
                node.replace_all_uses_with(_table_gradient(bag, gradient, rows))
            else:
                gradient, table, ids, offsets, _bag_of, mode, padding = _arguments(node, 7)
                bag = _bag(node, ids, offsets, mode=mode, weights=None, padding=padding)
                node.replace_all_uses_with(_weights_gradient(bag, gradient, table))
    if bags:
        for node in reversed(bags):
            _erase(node)
        traced.graph.eliminate_dead_code()


@dataclass(frozen=True)
class _Bag:
    """An operator that is written out."""

    node: fx.Node
    ids: fx.Node
    """[bags, length]"""
    shares: fx.Node | None
    """[bags, length]: what every row is multiplied by; None where `factor` says it for all."""
    factor: float
    count: int
    length: int

    def emit(self, target: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        return _emit(self.node, target, *arguments, **keywords)

    def shared(self, rows: fx.Node) -> fx.Node:
        """[bags, length, d], every row times its share."""
        if self.shares is not None:
            return self.emit(aten.mul.Tensor, rows, self.emit(aten.unsqueeze.default, self.shares, 2))
        return rows if self.factor == 1 else self.emit(aten.mul.Scalar, rows, self.factor)


def _bag(
    node: fx.Node, ids: fx.Node, offsets: fx.Node, *, mode: int, weights: fx.Node | None, padding: int
) -> _Bag:
    if mode not in (SUM, MEAN):
        raise _refused(node, "bags are formulated for sums and means")
    count, length = _equal_bags(node, ids, offsets)
    places = _emit(node, aten.view.default, ids, [count, length])
    shares = None if weights is None else _emit(node, aten.view.default, weights, [count, length])
    if padding < 0:
        return _Bag(node, places, shares, 1 / length if mode == MEAN else 1.0, count, length)
    kept = _emit(node, aten.ne.Scalar, places, padding)
    numbers = _emit(node, aten._to_copy.default, kept, dtype=torch.float32)
    shares = numbers if shares is None else _emit(node, aten.mul.Tensor, shares, numbers)
    if mode == MEAN:
        # A bag of padding alone is 0, not divided by 0.
        present = _emit(node, aten.clamp.default, _emit(node, aten.sum.dim_IntList, numbers, [1], True), 1)
        shares = _emit(node, aten.div.Tensor, shares, present)
    return _Bag(node, places, shares, 1.0, count, length)


def _total(bag: _Bag, table: fx.Node) -> fx.Node:
    rows = bag.emit(aten.embedding.default, table, bag.ids)
    return bag.emit(aten.sum.dim_IntList, bag.shared(rows), [1])


def _table_gradient(bag: _Bag, gradient: fx.Node, rows: int | fx.Node) -> fx.Node:
    columns = gradient.meta["val"].shape[1]
    spread = bag.emit(aten.unsqueeze.default, gradient, 1)
    spread = bag.shared(bag.emit(aten.expand.default, spread, [bag.count, bag.length, columns]))
    return bag.emit(aten.embedding_dense_backward.default, spread, bag.ids, rows, -1, False)


def _weights_gradient(bag: _Bag, gradient: fx.Node, table: fx.Node) -> fx.Node:
    rows = bag.shared(bag.emit(aten.embedding.default, table, bag.ids))
    products = bag.emit(aten.mul.Tensor, rows, bag.emit(aten.unsqueeze.default, gradient, 1))
    return bag.emit(
        aten.view.default, bag.emit(aten.sum.dim_IntList, products, [2]), [bag.count * bag.length]
    )


def _equal_bags(node: fx.Node, ids: fx.Node, offsets: fx.Node) -> tuple[int, int]:
    """Number and length of the bags."""
    (count,), (bags,) = ids.meta["val"].shape, offsets.meta["val"].shape
    module = node.graph.owning_module
    assert module is not None
    starts = getattr(module, str(offsets.target)) if offsets.op == "get_attr" else None
    whole = bags > 0 and count % bags == 0
    if starts is None or not whole or not torch.equal(starts, torch.arange(0, count, count // bags)):
        raise _refused(
            node, "bags are formulated for ids [b, n]: equally many for every example, padded if need be"
        )
    return bags, count // bags


def _arguments(node: fx.Node, count: int) -> Sequence[Any]:
    """All of them, those that were left out by their defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = [
        *node.args,
        *(node.kwargs.get(each.name, each.default_value) for each in schema[len(node.args) :]),
    ]
    assert len(given) == count, node.format_node()
    return given


def _emit(at: fx.Node, target: Any, *arguments: Any, **keywords: Any) -> fx.Node:
    node = at.graph.call_function(target, arguments, keywords)
    copy_label(node, at)
    values = fx.map_arg(arguments, lambda argument: argument.meta["val"])
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    with mode, torch.no_grad():
        node.meta["val"] = target(*values, **keywords)
    return node


def _replace_output(node: fx.Node, total: fx.Node) -> None:
    """The first of the operator's outputs; the others are for the gradients, which do without."""
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(total)


def _erase(node: fx.Node) -> None:
    for user in list(node.users):
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _refused(node: fx.Node, why: str) -> Exception:
    return unsupported(node, why, "read the rows with nn.Embedding and sum them in the model")
