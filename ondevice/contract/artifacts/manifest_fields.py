"""Fields of a JSON document that may come from anywhere: of the kind that is expected, or a ValueError that names the field.

What is read here is shown on terminals, becomes the size of an array or the name of a file: text is short, printable and
free of the console's markup, and numbers are whole and bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

LARGEST_TEXT = 200
LARGEST_COUNT = 2**53
"""What every reader of JSON takes without rounding."""
DEEPEST_ARGUMENT = 4
LARGEST_ARRAY = 2**31 - 1
"""Elements of one array of a step: runtimes have sizes of 32 bits."""


class Fields:
    """An object of the document, at `where`."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {_kind(value)}; expected an object")
        self._fields: dict[str, Any] = value
        self._where = where

    def raw(self, name: str) -> Any:
        """As it stands there: for what is never looked into."""
        if name not in self._fields:
            raise ValueError(f"{self._where} has no {name}")
        return self._fields[name]

    def optional(self, name: str) -> Fields | None:
        """An object; None where there is none."""
        value = self._fields.get(name)
        return None if value is None else Fields(value, self._at(name))

    def expect(self, *names: str) -> None:
        """No field but these."""
        unknown = [name for name in self._fields if name not in names]
        if unknown:
            raise ValueError(f"{self._where} has the unknown field {unknown[0][:LARGEST_TEXT]!r}")

    def text(self, name: str) -> str:
        return checked_text(self.raw(name), self._at(name))

    def flag(self, name: str) -> bool:
        value = self.raw(name)
        if not isinstance(value, bool):
            raise ValueError(f"{self._at(name)} is {_kind(value)}; expected true or false")
        return value

    def count(self, name: str, least: int = 0) -> int:
        return checked_count(self.raw(name), self._at(name), least)

    def optional_count(self, name: str) -> int | None:
        return None if self.raw(name) is None else self.count(name)

    def real(self, name: str) -> float:
        return checked_real(self.raw(name), self._at(name))

    def sequence(self, name: str) -> Sequence[object]:
        value = self.raw(name)
        if not isinstance(value, list):
            raise ValueError(f"{self._at(name)} is {_kind(value)}; expected a list")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(checked_text(value, self._at(name)) for value in self.sequence(name))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(checked_count(value, self._at(name), 1) for value in self.sequence(name))

    def symbolic_shape(self, name: str) -> tuple[int | str, ...]:
        """Numbers, and words for sizes that vary."""
        return tuple(
            value if isinstance(value, str) else checked_count(value, self._at(name), 1)
            for value in self.sequence(name)
        )

    def arguments(self, name: str) -> dict[str, Any]:
        """Keyword arguments: words, numbers, flags, nothing, and lists and objects of them."""
        value = self.raw(name)
        if not isinstance(value, dict):
            raise ValueError(f"{self._at(name)} is {_kind(value)}; expected an object")
        checked: dict[str, Any] = _argument(value, self._at(name), 0)
        return checked

    def reals(self, name: str) -> tuple[float, ...]:
        return tuple(checked_real(value, self._at(name)) for value in self.sequence(name))

    def optional_text(self, name: str) -> str | None:
        return None if self.raw(name) is None else self.text(name)

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [
            Fields(value, f"{self._at(name)}[{index}]") for index, value in enumerate(self.sequence(name))
        ]

    def named(self, name: str) -> dict[str, Fields]:
        """An object of objects."""
        inner = Fields(self.raw(name), self._at(name))
        return {
            checked_text(key, self._at(name)): Fields(value, f"{self._at(name)}.{key}")
            for key, value in inner._fields.items()
        }

    def counts(self, least: int = 0) -> Mapping[str, int]:
        """This object, if it is nothing but counts by name."""
        return {
            checked_text(key, self._where): checked_count(value, f"{self._where}.{key}", least)
            for key, value in self._fields.items()
        }

    def _at(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name


def checked_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {_kind(value)}; expected text")
    if not value or len(value) > LARGEST_TEXT or not value.isprintable() or set(value) & set("[]\\"):
        raise ValueError(
            f"{where} is {value[:LARGEST_TEXT]!r}; expected 1 to {LARGEST_TEXT} printable characters without brackets"
        )
    return value


def checked_count(value: object, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_COUNT:
        raise ValueError(
            f"{where} is {_kind(value)}; expected a whole number from {least} to {LARGEST_COUNT}"
        )
    return value


def checked_real(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{where} is {_kind(value)}; expected a finite number")
    return float(value)


def check_array(what: str, shape: Sequence[int]) -> None:
    """A ValueError if no step could have an array of that shape."""
    if math.prod(shape) > LARGEST_ARRAY:
        raise ValueError(
            f"{what} would have the shape {list(shape)}; expected at most {LARGEST_ARRAY} elements"
        )


def _argument(value: object, where: str, depth: int) -> Any:
    if depth > DEEPEST_ARGUMENT:
        raise ValueError(f"{where} has lists in lists; expected at most {DEEPEST_ARGUMENT} of them")
    if isinstance(value, str):
        return checked_text(value, where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [_argument(each, where, depth + 1) for each in value]
    if isinstance(value, dict):
        return {checked_text(name, where): _argument(each, where, depth + 1) for name, each in value.items()}
    checked_real(value, where)
    return value


def _kind(value: object) -> str:
    """The value if it is a small one, otherwise what it is."""
    if isinstance(value, bool | float) or value is None:
        return repr(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"a number of {value.bit_length()} bits"
    return {"str": "text", "list": "a list", "dict": "an object"}[type(value).__name__]
