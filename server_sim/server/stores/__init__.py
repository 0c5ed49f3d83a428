"""Where a table's rows lie with their moments: one store per file, chosen by `server.store`.

Adding one is a file here and a line in `STORES`.  A store keeps numbers and knows nothing of rounds or optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.stores.memory import MemoryStore


class RowStore(Protocol):
    """Rows by id: weights, moments, and the round at whose start each row is right."""

    @property
    def num_rows(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def gather(self, ids: IntArray) -> tuple[FloatArray, list[FloatArray], IntArray]:
        """Copies: weights [k, d], every moment [k, d], and the rounds at which they were brought up to date [k]."""
        ...

    def scatter(
        self, ids: IntArray, weights: FloatArray, moments: Sequence[FloatArray], current_at: int
    ) -> None:
        """Put rows back, all of them right at the start of one round; ids are distinct, in any order."""
        ...

    def arrays(self) -> dict[str, FloatArray | IntArray]:
        """Everything it holds, by name: `weights`, `moment0` ..., `current_at`.  Its own arrays, not copies: a saved state
        is read from them and loaded into them."""
        ...


STORES: dict[str, Callable[[FloatArray, Sequence[FloatArray], IntArray], RowStore]] = {"memory": MemoryStore}
