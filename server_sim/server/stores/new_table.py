"""What a store starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ondevice.contract.vocabulary import FloatArray, IntArray


@dataclass(frozen=True)
class NewTable:
    """A table at round 0, row by row: nothing of it need be in memory."""

    num_rows: int
    dim: int
    initial_rows: Callable[[IntArray], FloatArray]
    """The weights of some ids, [k, dim]; of an id always the same."""
    initial_moments: tuple[float, ...]
    """What each moment of a row is filled with."""
    path: Path
    """Where a store that keeps files keeps them: the start of their names."""
