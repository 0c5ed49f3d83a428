"""The losses by name: each says which tables, side arrays and labels it takes, and what an example loses.

Adding one of ours is a file here and a line in `OBJECTIVES`; anybody else's has a colon in its name (`named_code`).  It
must treat every example by itself, or micro-batches would no longer be exact; and be written in operators that the
lowerings know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.named_code import FORMS, UnusableCode, check_code_name, named_code
from ondevice.model.objectives.binary_cross_entropy import BinaryCrossEntropy
from ondevice.model.objectives.next_word import NextWord
from ondevice.model.objectives.sampled_softmax import SampledSoftmax


class Objective(Protocol):
    def inputs(self) -> tuple[ArraySpec, ...]:
        """The tables, side arrays and labels that it takes, in this order."""
        ...

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        """What the extractor gives, [b, d] or more, and the signature's data by name -> every example's loss, [b]."""
        ...


OBJECTIVES: dict[str, Callable[[StepSpec], Objective]] = {
    "sampled_softmax": SampledSoftmax,
    "next_word": NextWord,
    "binary_cross_entropy": BinaryCrossEntropy,
}


def check_objective(name: str) -> None:
    """ValueError for a name that no objective has, as far as can be told without importing any code."""
    if ":" in name:
        check_code_name("objective", name)
    elif name not in OBJECTIVES:
        raise ValueError(
            f"objective is {name!r}; expected one of {', '.join(OBJECTIVES)}, or another's: {FORMS}"
        )


def build_objective(spec: StepSpec) -> Objective:
    check_objective(spec.objective)
    if spec.objective in OBJECTIVES:
        return OBJECTIVES[spec.objective](spec)
    build = named_code("objective", spec.objective)
    try:
        objective: Objective = build(spec)
        of_objective = objective.inputs()
        if not callable(objective.losses):
            raise TypeError("its `losses` is no method")
    except (TypeError, AttributeError) as error:
        raise UnusableCode(
            f"objective is {spec.objective!r}, which cannot be a loss: {error}; expected a class that is made of a "
            "StepSpec and has the methods inputs() and losses(embeddings, arrays)"
        ) from error
    for array in of_objective:
        if array.role not in ("table", "side", "label"):
            raise UnusableCode(
                f"objective is {spec.objective!r}, whose input {array.name!r} has the role {array.role}; expected tables, "
                "side arrays and labels: features are the extractor's, and `losses` is given them by name"
            )
    return objective
