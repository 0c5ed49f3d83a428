"""Rows near a client's data by a proximity graph (HNSW of faiss), as section 5 of "Adaptive Sparse Federated Learning in
Large Output Spaces via Hashing" proposes beside hash tables.

A graph is walked from row to row towards each query: it takes the clients' embeddings, as the exact search does, and time
with log n instead of n, and may miss a few rows.  It is made anew of all rows in every round, which takes n log n: a graph
that was mended row by row would depend on the order of its repairs, and a resumed run would find others.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np

from ondevice.contract.messages.envelope import Envelope
from ondevice.contract.messages.lookup import queries_from_bytes
from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.server.row_index import stored_blocks
from server_sim.server.row_table import RowTable

_LINKS = 32
"""Of a row to others."""
_BUILD_BREADTH = 80
"""Rows that are kept in sight while a row is linked in."""
_SPARE, _LEAST = 4, 16
"""Queries find the same rows: each is asked for so many times its share of what is answered, and for so many at least."""


def check_installed() -> None:
    """ValueError where faiss is missing."""
    if importlib.util.find_spec("faiss") is None:
        raise ValueError(
            'scheme.search is "graph", which takes faiss: pip install "fedss-mobile[index]", or set it to "simhash"'
        )


class GraphIndex:
    """By inner product, or by angle: then rows are taken to be of one length."""

    def __init__(self, table: RowTable, max_found: int, by_angle: bool) -> None:
        self._table = table
        self._max_found = max_found
        self._by_angle = by_angle
        self._graph: Any = None
        """Of faiss; None when rows have moved since."""

    def find(self, envelope: Envelope, question: bytes) -> IntArray:
        queries = queries_from_bytes(question, envelope, self._table.dim)
        if self._graph is None:
            self._graph = self._made()
        share = max(_LEAST, math.ceil(_SPARE * self._max_found / len(queries)))
        count = min(share, self._max_found, self._table.num_rows)
        self._graph.hnsw.efSearch = 2 * count
        products, found = self._graph.search(np.ascontiguousarray(queries, np.float32), count)
        # A walk that ends early fills up with -1.
        ids, best = _best(found[found >= 0], products[found >= 0])
        return np.sort(ids[np.argsort(-best, kind="stable")[: self._max_found]])

    def refresh(self, ids: IntArray) -> None:
        if len(ids):
            self._graph = None

    def _made(self) -> Any:
        import faiss

        # One thread: rows are linked in by their order, so that the same rows make the same graph.
        faiss.omp_set_num_threads(1)
        graph = faiss.IndexHNSWFlat(self._table.dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = _BUILD_BREADTH
        for rows in stored_blocks(self._table):
            graph.add(np.ascontiguousarray(_directions(rows) if self._by_angle else rows, np.float32))
        return graph


def _directions(rows: FloatArray) -> FloatArray:
    directions: FloatArray = rows / np.maximum(np.sqrt((rows * rows).sum(1, keepdims=True)), 1e-12)
    return directions


def _best(ids: IntArray, products: FloatArray) -> tuple[IntArray, FloatArray]:
    """Every row once, sorted, with its largest product."""
    unique, where = np.unique(ids, return_inverse=True)
    best = np.full(len(unique), -np.inf, np.float32)
    np.maximum.at(best, where, products)
    return unique, best
