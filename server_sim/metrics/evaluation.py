"""How good the global model is: top-1 accuracy with the full W, and MAP@R of nearest-neighbour retrieval (Eq. 9).

    MAP@R = mean over queries of  1/R Σ_{i=1..R} P(i),   P(i) = precision at i if the i-th retrieval is right, else 0

Every image of the test split queries the others; nearness is the Euclidean distance of unit-length embeddings, whose order
is that of the cosine.  R is fixed at 10, as in the paper, so a class with few images cannot reach 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondevice.backends import Backend
from ondevice.contract.vocabulary import ExampleSet, FloatArray, IntArray, LogitKind, Parameters

RETRIEVED = 10
_BLOCK = 256
"""Images embedded, and queries compared, at a time: bounds the memory."""


def embed_examples(backend: Backend, dense: Parameters, examples: ExampleSet) -> FloatArray:
    """[N, d]"""
    size = backend.micro_batch or _BLOCK
    blocks = []
    for start in range(0, len(examples), size):
        features = {name: feature[start : start + size] for name, feature in examples.features.items()}
        blocks.append(backend.embed({**dense, **features}))
    return np.concatenate(blocks)


def top1_accuracy(
    embeddings: FloatArray, labels: IntArray, class_weights: FloatArray, logits: LogitKind
) -> float:
    """Share of the examples whose highest logit over all n classes is their own."""
    if logits == "dot":
        weights, bias = class_weights[:, :-1], class_weights[:, -1]
    else:  # the scale and the length of f change no maximum
        weights, bias = _unit(class_weights), np.zeros(len(class_weights), np.float32)
    right = 0
    for block in _blocks(len(labels)):
        predicted = (embeddings[block] @ weights.T + bias).argmax(1)
        right += int((predicted == labels[block]).sum())
    return right / len(labels)


def map_at_r(embeddings: FloatArray, labels: IntArray, retrieved: int = RETRIEVED) -> float:
    """Eq. 9, each example a query against all the others."""
    if len(labels) <= retrieved:
        raise ValueError(f"{len(labels)} examples; retrieval of {retrieved} needs more than that")
    unit = _unit(embeddings)
    ranks = np.arange(1, retrieved + 1)
    total = 0.0
    for block in _blocks(len(labels)):
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


def _unit(rows: FloatArray) -> FloatArray:
    unit: FloatArray = rows / np.sqrt((rows * rows).sum(1, keepdims=True) + np.float32(1e-12))
    return unit


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))
