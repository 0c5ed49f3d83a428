"""Options that take several values: `--widths 7,170,1024`."""

from __future__ import annotations

from fedss.api.errors import UsageError


def names(option: str, text: str) -> list[str]:
    """At least one name, each once."""
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not values or len(set(values)) != len(values):
        raise UsageError(f"{option} is {text!r}; expected names separated by commas, each once")
    return values


def numbers(option: str, text: str) -> list[int]:
    """At least one whole number, all positive, each once."""
    values = names(option, text)
    if not all(value.isascii() and value.isdigit() and int(value) > 0 for value in values):
        raise UsageError(f"{option} is {text!r}; expected whole numbers of 1 or more, separated by commas")
    return [int(value) for value in values]
