"""Top-1 accuracy over all classes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ondevice.contract.tokens import NUM_SPECIAL, TOKENS
from ondevice.contract.vocabulary import COLUMNS, ExampleSet, FloatArray, IntArray, LogitKind
from server_sim.metrics.metric import EvaluationView, Metric
from server_sim.metrics.rows import blocks_of, unit_rows


def top1_accuracy(
    embeddings: FloatArray,
    labels: IntArray,
    class_blocks: Iterable[FloatArray],
    logits: LogitKind,
    num_special: int = 0,
) -> float:
    """Share of the examples whose highest logit over all n classes is their own.  The rows of W come block by block: neither
    all of them nor a number for every example and class need be in memory.  The first `num_special` are no answers."""
    best = np.full(len(labels), -np.inf, np.float32)
    predicted = np.full(len(labels), -1, np.int64)
    first = 0
    for rows in class_blocks:
        if logits == "dot":
            weights, bias = rows[:, :-1], rows[:, -1]
        else:  # the scale and the length of f change no maximum
            weights, bias = unit_rows(rows), np.zeros(len(rows), np.float32)
        for block in blocks_of(len(labels)):
            scores = embeddings[block] @ weights.T + bias
            scores[:, : max(0, num_special - first)] = -np.inf
            highest = scores.argmax(1)
            score = scores[np.arange(len(highest)), highest]
            # Of equal ones the first, as argmax has it.
            better = score > best[block]
            best[block][better] = score[better]
            predicted[block][better] = highest[better] + first
        first += len(rows)
    return float((predicted == labels).mean())


def _measure(view: EvaluationView) -> dict[str, float]:
    logits = view.experiment.model.logits
    blocks = view.row_blocks(COLUMNS)
    special = num_special_of(view.test)
    return {"top1": top1_accuracy(view.embeddings(), view.test.labels, blocks, logits, special)}


def num_special_of(examples: ExampleSet) -> int:
    """Of the first classes: a text's are tokens, of which some are no words."""
    return NUM_SPECIAL if TOKENS in examples.features else 0


TOP1 = Metric({"top1": "top-1 accuracy"}, _measure)
