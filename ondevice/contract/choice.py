"""A registered file chosen by name, with settings of its own: how plans and experiments name samplers and the like.

A registry is a plain dictionary from name to a frozen dataclass, one per file.  Adding a member is a new file and a line in
the dictionary; settings that a member does not have cannot be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any, TypeVar

Setting = str | int | float | bool
Member = TypeVar("Member")


class UnknownChoice(ValueError):
    """A name that is not registered here, or settings that its member does not have."""


@dataclass(frozen=True)
class Choice:
    """As in {"name": "uniform_negatives", "num_negatives": 80}."""

    name: str
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def to_document(self) -> dict[str, Setting]:
        return {"name": self.name, **self.settings}


def choice_from_document(document: Any) -> Choice:
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        raise UnknownChoice(f"{document!r} is no choice; expected a name, and settings beside it")
    settings = {key: value for key, value in document.items() if key != "name"}
    for key, value in settings.items():
        if not isinstance(value, Setting) or (isinstance(value, float) and not isfinite(value)):
            raise UnknownChoice(f"{document['name']}: {key} is {value!r}; expected a number or a word")
    return Choice(document["name"], settings)


def choice_of(registry: Mapping[str, Callable[..., Any]], member: Any) -> Choice:
    """The choice that gives this member again."""
    name = next(name for name, kind in registry.items() if kind is type(member))
    return Choice(name, asdict(member))


def chosen(registry: Mapping[str, Callable[..., Member]], choice: Choice, what: str) -> Member:
    """The member, made with its settings.  A device that is older than the plan says what it lacks, by name."""
    if choice.name not in registry:
        raise UnknownChoice(
            f"there is no {what} {choice.name!r} here, only {', '.join(registry)}; a device needs a newer bundle"
        )
    kind: Any = registry[choice.name]
    known = {entry.name: str(entry.type) for entry in fields(kind)}
    for name, value in choice.settings.items():
        if name not in known:
            raise UnknownChoice(
                f"{what} {choice.name!r} has no setting {name!r}; it has {', '.join(known) or 'none'}"
            )
        if known[name] in ("int", "float", "bool", "str") and not _fits(value, known[name]):
            raise UnknownChoice(f"{what} {choice.name!r}: {name} is {value!r}; expected {known[name]}")
    try:
        return registry[choice.name](**choice.settings)
    except (TypeError, ValueError) as error:
        raise UnknownChoice(f"{what} {choice.name!r}: {error}") from None


def _fits(value: Setting, kind: str) -> bool:
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    return isinstance(value, {"int": int, "float": (int, float), "str": str}[kind])  # type: ignore[arg-type]
