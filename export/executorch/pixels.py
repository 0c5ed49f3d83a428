"""Raw pixels in one pass: what `ondevice.model.pixels` writes as three operators becomes one of ours.

    sub(mul(to_float(images), scale), shift)  ->  fedss.pixels(images, scale, shift)

A network whose pixels are normalised in another way keeps the operators that it was traced with.
"""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten


def fuse_pixels(traced: fx.GraphModule) -> fx.GraphModule:
    """The same graph; changed in place."""
    for node in list(traced.graph.nodes):
        found = _images_scale_shift(node)
        if found is None:
            continue
        with traced.graph.inserting_before(node):
            fused = traced.graph.call_function(torch.ops.fedss.pixels.default, found)
        fused.meta = dict(node.meta)
        node.replace_all_uses_with(fused)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _images_scale_shift(subtract: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """The three arguments, where this node ends the pattern."""
    if subtract.target is not aten.sub.Tensor or subtract.kwargs:
        return None
    product, shift = subtract.args
    if not (isinstance(product, fx.Node) and product.target is aten.mul.Tensor and _is_per_channel(shift)):
        return None
    converted, scale = product.args
    if not (
        isinstance(converted, fx.Node)
        and converted.target is aten._to_copy.default
        and _is_per_channel(scale)
    ):
        return None
    images = converted.args[0]
    assert isinstance(images, fx.Node)
    assert isinstance(scale, fx.Node)
    assert isinstance(shift, fx.Node)
    if images.meta["val"].dtype != torch.uint8 or images.meta["val"].dim() != 4:
        return None
    return images, scale, shift


def _is_per_channel(node: object) -> bool:
    if not (isinstance(node, fx.Node) and node.op == "get_attr"):
        return False
    shape = node.meta["val"].shape
    return len(shape) == 3 and shape[1:] == (1, 1)
