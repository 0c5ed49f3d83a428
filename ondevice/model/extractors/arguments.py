"""The sizes of one of our extractors, from `StepSpec.architecture_arguments`: a frozen dataclass of whole numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from ondevice.contract.vocabulary import StepSpec

Sizes = TypeVar("Sizes")


def sizes_of(kind: type[Sizes], spec: StepSpec) -> Sizes:
    """ValueError for a size that the architecture does not have, or that is no whole number from 1."""
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for name, value in spec.architecture_arguments.items():
        if name not in known:
            raise ValueError(f"{spec.architecture} has no argument {name!r}; it has {', '.join(known)}")
        if type(value) is not int or value < 1:
            raise ValueError(f"{spec.architecture}: {name} is {value!r}; expected a whole number from 1")
    return kind(**spec.architecture_arguments)
