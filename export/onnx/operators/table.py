"""Which formulation every ATen operator has: the families, put together.

A formulation takes the translation, the traced node and the node's arguments; one that it does not take is refused.  A new
operator is a function and a line in the FORMULATIONS of the family that it belongs to.
"""

from __future__ import annotations

from torch import fx

from export.onnx.operators import (
    activations,
    arithmetic,
    convolution,
    creation,
    indexing,
    norms,
    pieces,
    pooling,
    products,
    reductions,
    shapes,
)
from export.onnx.translation import Formulation
from export.refusal import unsupported

FAMILIES = (
    arithmetic,
    activations,
    shapes,
    pieces,
    creation,
    indexing,
    reductions,
    products,
    norms,
    pooling,
    convolution,
)

FORMULATIONS: dict[object, Formulation] = {
    operator: formulation for family in FAMILIES for operator, formulation in family.FORMULATIONS.items()
}


def formulation_of(node: fx.Node) -> Formulation:
    """The table's entry for an operator."""
    if node.target not in FORMULATIONS:
        raise unsupported(
            node,
            "it has no ONNX formulation",
            "add one to FORMULATIONS in a family of export/onnx/operators, or write the model without it",
        )
    return FORMULATIONS[node.target]
