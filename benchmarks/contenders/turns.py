"""How a contender is told to do its work: a line on its standard input per turn, and a line back when it is done.

It may write whatever else it likes; only lines that begin with the mark count.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

MARK = "RACE "
READY, DONE = "ready", "done"


def turns() -> Iterator[int]:
    """Yields the number of every turn as it comes; the contender does the turn's work before it asks for the next."""
    _tell(READY)
    for number, _ in enumerate(sys.stdin):
        yield number
        _tell(DONE)


def _tell(word: str) -> None:
    print(f"\n{MARK}{word}", flush=True)
