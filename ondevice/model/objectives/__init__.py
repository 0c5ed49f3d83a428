"""The losses by name: each says which tables, side arrays and labels it takes, and what an example loses.

Adding one is a file here and a line in `OBJECTIVES`.  It must treat every example by itself, or micro-batches would no
longer be exact; and be written in operators that the lowerings know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.objectives.sampled_softmax import SampledSoftmax


class Objective(Protocol):
    def inputs(self) -> tuple[ArraySpec, ...]:
        """The tables, side arrays and labels that it takes, in this order."""
        ...

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        """[b, d] embeddings and the signature's data by name -> the loss of every example, [b]."""
        ...


OBJECTIVES: dict[str, Callable[[StepSpec], Objective]] = {"sampled_softmax": SampledSoftmax}


def build_objective(spec: StepSpec) -> Objective:
    if spec.objective not in OBJECTIVES:
        raise ValueError(f"objective is {spec.objective!r}; expected one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[spec.objective](spec)
