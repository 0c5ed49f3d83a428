"""A dataclass from exactly its fields: a setting which an older reader would ignore is an error, not another experiment."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def exactly(kind: type[Kind], document: Any) -> Kind:
    """An object of `kind` from exactly its fields, numbers where it has numbers; ValueError says which is wrong."""
    entries = fields(kind)  # type: ignore[arg-type]  # always a dataclass
    names = {entry.name for entry in entries}
    if not isinstance(document, dict) or set(document) != names:
        given = sorted(document) if isinstance(document, dict) else repr(document)
        raise ValueError(f"fields are {given}; expected {sorted(names)}")
    for entry in entries:
        value = document[entry.name]
        expected: Any = {"int": int, "float": (int, float)}.get(str(entry.type), object)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise ValueError(f"{entry.name} is {value!r}; expected {entry.type}")
    return kind(**document)
