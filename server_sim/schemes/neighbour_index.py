"""The nearest others of some rows among very many, by an index instead of comparing with every row.

The table's directions are sorted into cells around centres that k-means finds (faiss, inverted lists), and a row is compared
with those of the cells nearest to it.  The index is made anew in every round: rows move, and so a run that is resumed finds
what it would have found.  Making it costs n times the number of cells, which grows with the square root of n; comparing the
touched rows with all would cost their number times n.  It holds the whole table once, as directions.

What it may miss is a neighbour in a cell that was not looked at; `CELLS_SEEN` says how many are.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray

CELLS_SEEN = 1 / 8
"""Of all cells, those that a row is compared with."""
_SAMPLES_PER_CELL = 64
"""That k-means is given."""


def check_installed() -> None:
    """ValueError where faiss is missing."""
    if importlib.util.find_spec("faiss") is None:
        raise ValueError(
            'scheme.neighbor_search is "index", which takes faiss: pip install "fedss-mobile[index]", or set it to "exact"'
        )


def nearest_by_index(
    ids: IntArray, queries: FloatArray, blocks: Iterable[FloatArray], count: int
) -> FloatArray:
    """As `spreadout.nearest_others`: the directions [q, count, d] of the rows that are nearest to the rows `ids`."""
    import faiss

    table = np.ascontiguousarray(np.concatenate(list(blocks)), np.float32)
    num_cells = max(1, round(2 * math.sqrt(len(table))))
    faiss.omp_set_num_threads(1)
    centres = faiss.IndexFlatIP(table.shape[1])
    index = faiss.IndexIVFFlat(centres, table.shape[1], num_cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.niter = 0, 5
    index.cp.max_points_per_centroid = _SAMPLES_PER_CELL
    index.cp.min_points_per_centroid = 1
    index.train(table)
    index.add(table)
    index.nprobe = max(1, math.ceil(CELLS_SEEN * num_cells))
    # One more than asked for: a row is its own nearest.
    _, found = index.search(np.ascontiguousarray(queries, np.float32), min(count + 1, len(table)))
    near = np.repeat(-queries[:, None], count, axis=1)
    for place, (own, others) in enumerate(zip(ids.tolist(), found.tolist(), strict=True)):
        kept = [row for row in others if row not in (own, -1)][:count]
        near[place, : len(kept)] = table[kept]
    return near
