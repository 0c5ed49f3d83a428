"""The fields of an experiment, read from its model: what a wrong one is told, and the table in docs/experiments.md.

python -m server_sim.experiment_fields        prints that table
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "nothing"}


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Every field by its dotted name, in the order of the model."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        if section is None:
            found[name] = field
            continue
        # A section with members to choose from has what all of them have, then the settings of each.
        members: Callable[[], Sequence[type[BaseModel]]] = getattr(section, "members", tuple)
        for kind in (section, *members()):
            for inner, inner_field in fields_of(kind).items():
                found.setdefault(f"{name}.{inner}", inner_field)
    return found


STATED = "stated"
"""The type of an error that is in the words of an experiment already: its context has them as `text`."""


def explain(error: Any, model: type[BaseModel], section: str = "") -> str:
    """One of pydantic's errors in the words of an experiment; `section` is where the model stands in it."""
    if error["type"] == STATED:
        return str(error["ctx"]["text"])
    start = f"{section}." if section else ""
    known = {start + name: field for name, field in fields_of(model).items()}
    path = [*([section] if section else []), *(str(part) for part in error["loc"])]
    # pydantic adds the parts of a union to the path; a user knows fields.
    starts = [".".join(path[:length]) for length in range(len(path), 0, -1)]
    name = next((start for start in starts if start in known), starts[0] if starts else "")
    if error["type"] == "extra_forbidden":
        return f"{name}: there is no such field{_nearest(name, list(known))}"
    if error["type"] == "missing":
        return f"{name}: is missing"
    words = _words(known[name].annotation) if name in known else ()
    if words:
        return f"{name} is {error['input']!r}; expected one of {', '.join(words)}"
    return f"{name}: {error['msg']} (got {error['input']!r})"


def fields_table(model: type[BaseModel]) -> str:
    """Markdown: field, what it takes, its default and what it means."""
    lines = ["| field | takes | default | meaning |", "|---|---|---|---|"]
    for name, field in _definitions(model):
        cells = (name, _takes(field), _default(field), field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _definitions(model: type[BaseModel], start: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """As `fields_of`, but of members that define one field in two ways, each definition, with the member's name."""
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        if section is None:
            yield f"`{start}{name}`", field
            continue
        seen: dict[str, list[str]] = {}
        members: Callable[[], Sequence[type[BaseModel]]] = getattr(section, "members", tuple)
        for kind in (section, *members()):
            for shown, inner in _definitions(kind, f"{start}{name}."):
                told = seen.setdefault(shown, [])
                meaning = f"{_takes(inner)}{_default(inner)}{inner.description}"
                # Every member has a name of its own; the section says what they are.
                if shown.endswith(".name`") and told:
                    continue
                if meaning not in told:
                    yield (f"{shown} of `{kind.model_fields['name'].default}`" if told else shown), inner
                told.append(meaning)


def _nearest(field: str, known: list[str]) -> str:
    """What was meant, if a name of the same section is nearly the same; otherwise what there is."""
    section, dot, name = field.rpartition(".")
    beside = _names_in(section, known)
    if not beside:  # the section is what does not exist
        section, dot, name, beside = "", "", section.partition(".")[0], _names_in("", known)
    near = difflib.get_close_matches(name, beside, n=1, cutoff=0.75)
    if near:
        return f"; did you mean {section}{dot}{near[0]}?"
    return f"; {section or 'an experiment'} has {', '.join(beside)}"


def _names_in(section: str, known: list[str]) -> list[str]:
    """Fields and sections directly in a section; "" is the experiment itself."""
    start = f"{section}." if section else ""
    inside = [name.removeprefix(start).partition(".")[0] for name in known if name.startswith(start)]
    return list(dict.fromkeys(inside))


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, if it holds one, or may."""
    for kind in _parts(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _parts(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _words(annotation: Any) -> tuple[str, ...]:
    """The words that a field takes; none where it takes other things."""
    found: list[str] = []
    for part in _parts(annotation):
        if get_origin(part) is not Literal:
            return ()
        found += map(str, get_args(part))
    return tuple(found)


def _takes(field: FieldInfo) -> str:
    words = _words(field.annotation)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    kinds = [_kind(part) for part in _parts(field.annotation)]
    return " or ".join(kinds) + _bounds(field)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is tuple:
        return "list of " + _KINDS.get(get_args(annotation)[0], "row") + "s"
    return _KINDS.get(annotation, "table")


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": "at least", "gt": "above", "lt": "below", "le": "at most"}
    bounds = [
        f"{words} {_number(getattr(bound, sign))}"
        for bound in field.metadata
        for sign, words in signs.items()
        if hasattr(bound, sign)
    ]
    return f", {' and '.join(bounds)}" if bounds else ""


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    from server_sim.experiment import Experiment

    print(fields_table(Experiment), end="")
