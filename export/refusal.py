"""The words in which a lowering refuses an operator: which, where in the model, why, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

from torch import fx

from export.layers import EXTRACTOR, OUTSIDE, label_of
from export.unsupported_operator import UnsupportedOperator

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \w+\n\s*(?P<code>.+)')

_OTHERS = re.compile(r"/torch/|/ondevice/model/train_step\.py$")
"""Code that calls the model's: a line of it says nothing."""


def unsupported(node: fx.Node, why: str, advice: str) -> UnsupportedOperator:
    """The error for an operator: which, where in the model, why not, and what to do."""
    return UnsupportedOperator(f"the model uses {node.target} (at {place_of(node)}): {why}; {advice}")


def place_of(node: fx.Node) -> str:
    """The layer by the path of its module, which pass, and the line of the model's source."""
    label = label_of(node)
    if label is None:
        return node.name
    layer, backward = label
    where = {OUTSIDE: "the objective", EXTRACTOR: "the extractor itself"}.get(layer, layer)
    return f"{where}{', in its gradient' if backward else ''}{_source_of(node, layer)}"


def _source_of(node: fx.Node, layer: str) -> str:
    """Autograd's operators have no line; the last one that the layer wrote itself stands for them."""
    trace = node.stack_trace
    if trace is None:
        written = [each for each in node.graph.nodes if each.stack_trace and label_of(each) == (layer, False)]
        trace = written[-1].stack_trace if written else None
    frames = list(_FRAME.finditer(trace or ""))
    # Modules of torch call on: the last line outside it is the user's.
    own = [frame for frame in frames if not _OTHERS.search(frame["file"])]
    if not own:
        return ""
    last = own[-1]
    return f", {Path(last['file']).name} line {last['line']}: {last['code'].strip()}"
