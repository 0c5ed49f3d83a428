"""FedAwS (Yu et al. 2020): clients hold their own classes alone, and the server keeps all classes apart.

Clients train as with PosOnly.  Once their differences are averaged, the server pushes every column that somebody touched
away from its nearest others (`server_sim.schemes.spreadout`), and hands the sum of both to its optimizer.  With FedAvg and a
learning rate of 1 this is a gradient step of length `spreadout_weight` from the averaged columns, as in the paper.

The others are read as they stand in this round, whether somebody touched them or not, so lazy momentum changes nothing:
the outcome is that of a server which updates every column in every round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from ondevice.contract.choice import Choice
from ondevice.contract.vocabulary import COLUMNS, FloatArray, IntArray
from server_sim.schemes.client_scheme import ClientScheme
from server_sim.schemes.neighbour_index import check_installed, nearest_by_index
from server_sim.schemes.spreadout import directions_of, nearest_others, spreadout_gradient
from server_sim.server.aggregation import AggregatedRows

if TYPE_CHECKING:
    from server_sim.server.aggregation import AggregatedUpdate
    from server_sim.server.state import ServerState

_QUERIES = 1024
"""Touched rows that are compared with the table at a time: what bounds the memory of a round."""


class FedAwS(ClientScheme):
    label: ClassVar[str] = "FedAwS"
    name: Literal["fedaws"] = "fedaws"
    spreadout_weight: float = Field(0.01, ge=0, description="How hard the server pushes classes apart.")
    margin: float = Field(
        1.0, gt=0, le=2, description="The distance between the directions of two classes that is far enough."
    )
    num_neighbors: int = Field(10, ge=1, description="The nearest others that a class is pushed away from.")
    neighbor_search: Literal["exact", "index"] = Field(
        "exact",
        description="How they are found: by comparing with every class, or, for very many classes, by an index that may "
        'miss a few (`pip install "fedss-mobile[index]"`).',
    )

    def check_installed(self) -> None:
        if self.neighbor_search == "index":
            check_installed()

    def sampler(self) -> Choice:
        return Choice("positives")

    def before_apply(self, mean: AggregatedUpdate, state: ServerState) -> AggregatedUpdate:
        table, rows = state.tables[COLUMNS], mean.tables[COLUMNS]
        order = np.argsort(rows.ids)
        ids = rows.ids[order]
        moved = table.read(ids, state.round_index) + rows.delta[order]
        directions = directions_of(moved)
        delta = np.array(rows.delta)
        count = min(self.num_neighbors, table.num_rows - 1)
        # An index serves all touched rows at once; comparing with every row bounds its memory by parts of them.
        step = len(ids) if self.neighbor_search == "index" else _QUERIES
        nearest = nearest_by_index if self.neighbor_search == "index" else nearest_others
        for start in range(0, len(ids) if count else 0, max(1, step)):
            part = slice(start, start + step)
            blocks = _as_moved(table.blocks(state.round_index), ids, directions)
            near = nearest(ids[part], directions[part], blocks, count)
            push = spreadout_gradient(moved[part], near, self.margin)
            delta[order[part]] -= np.float32(self.spreadout_weight) * push
        return replace(mean, tables={**mean.tables, COLUMNS: AggregatedRows(rows.ids, delta)})


def _as_moved(blocks: Iterator[FloatArray], ids: IntArray, directions: FloatArray) -> Iterator[FloatArray]:
    """The table's directions, those of the sorted `ids` as the mean has moved them."""
    start = 0
    for block in blocks:
        found = directions_of(block)
        first, last = np.searchsorted(ids, [start, start + len(block)])
        found[ids[first:last] - start] = directions[first:last]
        yield found
        start += len(block)
