"""Bags of embeddings (`nn.EmbeddingBag`): sums and means over equally many ids per example, with the table's gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from export.onnx.operators.indexing import added_rows
from export.onnx.translation import Formulation, Translation, Value, constant_of, refused, shape_of

aten = torch.ops.aten

SUM, MEAN = 0, 1
"""ATen's numbers of the modes; the largest of a bag is the third."""


@dataclass(frozen=True)
class _Bags:
    ids: str
    """[bags, length]"""
    shares: str | None
    """[bags, length, 1]: what every row is multiplied by; None where all shares are 1."""
    shape: tuple[int, int]


def _bags(
    t: Translation,
    node: fx.Node,
    ids: fx.Node,
    offsets: fx.Node,
    *,
    mode: int,
    weights: fx.Node | None,
    padding: int,
) -> _Bags:
    g = t.graph
    if mode not in (SUM, MEAN):
        raise refused(node, "bags are formulated for sums and means")
    shape = _equal_bags(node, ids, offsets)
    name = g.reshape(t.full(ids), *shape)
    shares = None if weights is None else g.reshape(t.full(weights), *shape)
    count = g.number(shape[1])
    if padding >= 0:
        kept = g.call("Not", g.call("Equal", name, constant_of(t, ids, padding)))
        numbers = t.cast(kept, torch.bool, torch.float32)
        shares = numbers if shares is None else g.multiply(shares, numbers)
        # A bag of padding alone is 0, not divided by 0.
        count = g.call("Max", g.sum(numbers, 1, keep=True), g.number(1))
    if mode == MEAN:
        shares = g.call("Div", g.number(1) if shares is None else shares, count)
        shares = g.call("Expand", shares, g.integers(*shape))
    return _Bags(name, None if shares is None else g.reshape(shares, *shape, 1), shape)


def _equal_bags(node: fx.Node, ids: fx.Node, offsets: fx.Node) -> tuple[int, int]:
    """Number and length of the bags; where each begins must be known, and all must be equally long."""
    (count,), (bags,) = shape_of(ids), shape_of(offsets)
    if offsets.op != "get_attr" or bags < 1 or count % bags:
        raise refused(
            node, "bags are formulated for ids [b, n]: equally many for every example, padded if need be"
        )
    module = offsets.graph.owning_module
    assert module is not None
    starts = getattr(module, str(offsets.target))
    if not torch.equal(starts, torch.arange(0, count, count // bags)):
        raise refused(node, "bags are formulated for equally many ids per example, padded if need be")
    return bags, count // bags


def _bag(
    t: Translation,
    node: fx.Node,
    table: fx.Node,
    ids: fx.Node,
    offsets: fx.Node,
    _by_frequency: bool = False,
    mode: int = SUM,
    _sparse: bool = False,
    weights: fx.Node | None = None,
    last_offset: bool = False,
    padding: int = -1,
) -> tuple[Value, ...]:
    """Only our own backward pass would read the other outputs, and does without."""
    if last_offset:
        raise refused(node)
    bags = _bags(t, node, ids, offsets, mode=mode, weights=weights, padding=padding)
    rows = t.graph.call("Gather", t.full(table), bags.ids, axis=0)
    shared = rows if bags.shares is None else t.graph.multiply(rows, bags.shares)
    nothing = Value(t.graph.integers(0), (1,))
    return Value(t.graph.sum(shared, 1), (bags.shape[0], shape_of(table)[1])), nothing, nothing, nothing


def _bag_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    ids: fx.Node,
    offsets: fx.Node,
    _bag_of_id: fx.Node,
    _sizes: fx.Node,
    _largest: fx.Node,
    _rows: int,
    by_frequency: bool,
    mode: int,
    _sparse: bool,
    weights: fx.Node | None,
    padding: int = -1,
) -> Value:
    if by_frequency:
        raise refused(node)
    g = t.graph
    bags = _bags(t, node, ids, offsets, mode=mode, weights=weights, padding=padding)
    rows = g.call("Unsqueeze", t.full(dy), g.integers(1))
    if bags.shares is not None:
        spread = g.multiply(rows, bags.shares)
    else:
        spread = g.call("Expand", rows, g.integers(*bags.shape, shape_of(dy)[1]))
    return added_rows(t, node, bags.ids, spread)


FORMULATIONS: dict[object, Formulation] = {
    aten._embedding_bag.default: _bag,
    aten._embedding_bag_backward.default: _bag_backward,
}
