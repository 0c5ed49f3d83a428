"""Where a table's rows lie with their moments: one store per file, chosen by `server.store`.

Adding one is a file here and a line in `STORES`.  A store keeps numbers and knows nothing of rounds or optimizers: the loops
of `server_sim.server.row_loop` work in its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.stores.mapped import MappedStore
from server_sim.server.stores.memory import MemoryStore
from server_sim.server.stores.new_table import NewTable
from server_sim.server.stores.open_rows import OpenRows


class RowStore(Protocol):
    """Rows by id: weights, moments, and the round at whose start each row is right."""

    @property
    def num_rows(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def open(self, ids: IntArray) -> OpenRows:
        """Where these rows are, to be read, or to be changed with `wrote` behind it.  Distinct ids in any order."""
        ...

    def wrote(self, ids: IntArray, rows: OpenRows) -> None:
        """What was opened for these ids has been changed, all of it."""
        ...

    def arrays(self) -> dict[str, FloatArray | IntArray]:
        """What a saved state has of it, by name: `current_at`, `weights`, `moment0` ..., or `extent` of a store that keeps
        its rows in files.  Views of its own arrays, not copies: they are saved from there and loaded into them."""
        ...


STORES: dict[str, Callable[[NewTable], RowStore]] = {"memory": MemoryStore.of, "mapped": MappedStore}
"""Made of a new table; every row is right at the start of round 0."""
