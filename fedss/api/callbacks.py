"""How work that takes a while is heard of: by callbacks, of which none has to be given."""

from __future__ import annotations

from collections.abc import Callable

Note = Callable[[str], None]
"""Told in words what is being done, or what a person should know."""
Advance = Callable[[int, int], None]
"""Told how much is done, of how much."""
Stop = Callable[[], bool]
"""Asked between two clients whether to stop there."""


def unheard(_: str) -> None:
    """For notes that nobody wants."""


def never() -> bool:
    """For runs that nobody stops."""
    return False
