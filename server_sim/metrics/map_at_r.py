"""MAP@R of nearest-neighbour retrieval (Eq. 9 of the FedSS paper).

    MAP@R = mean over queries of  1/R Σ_{i=1..R} P(i),   P(i) = precision at i if the i-th retrieval is right, else 0

Every image of the test split queries the others; nearness is the Euclidean distance of unit-length embeddings, whose order
is that of the cosine.  R is fixed at 10, as in the paper, so a class with few images cannot reach 1.
"""

from __future__ import annotations

import numpy as np

from ondevice.contract.vocabulary import FloatArray, IntArray
from server_sim.metrics.metric import EvaluationView, Metric
from server_sim.metrics.rows import blocks_of, unit_rows

RETRIEVED = 10


def map_at_r(embeddings: FloatArray, labels: IntArray, retrieved: int = RETRIEVED) -> float:
    """Eq. 9, each example a query against all the others."""
    if len(labels) <= retrieved:
        raise ValueError(f"{len(labels)} examples; retrieval of {retrieved} needs more than that")
    unit = unit_rows(embeddings)
    ranks = np.arange(1, retrieved + 1)
    total = 0.0
    for block in blocks_of(len(labels)):
        similarity = unit[block] @ unit.T
        rows = np.arange(len(similarity))
        similarity[rows, rows + block.start] = -np.inf  # a query does not find itself
        nearest = np.argpartition(-similarity, retrieved, axis=1)[:, :retrieved]
        order = np.argsort(-np.take_along_axis(similarity, nearest, 1), axis=1, kind="stable")
        nearest = np.take_along_axis(nearest, order, 1)
        right = labels[nearest] == labels[block, None]
        precision = right.cumsum(1) / ranks
        total += float((precision * right).sum() / retrieved)
    return total / len(labels)


def _measure(view: EvaluationView) -> dict[str, float]:
    return {"map_at_r": map_at_r(view.embeddings(), view.test.labels)}


MAP_AT_R = Metric({"map_at_r": f"MAP@{RETRIEVED}"}, _measure)
