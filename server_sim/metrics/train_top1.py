"""Top-1 accuracy on the training split beside MAP@R of unseen classes: what a model has learnt by heart (FedSS, Table 4)."""

from __future__ import annotations

from ondevice.client.embedding import embed_examples
from ondevice.contract.vocabulary import COLUMNS
from server_sim.metrics.map_at_r import RETRIEVED, map_at_r
from server_sim.metrics.metric import EvaluationView, Metric
from server_sim.metrics.top1 import num_special_of, top1_accuracy


def _measure(view: EvaluationView) -> dict[str, float]:
    train = view.population.train
    embeddings = embed_examples(view.backend, view.dense, train, view.read_rows)
    logits = view.experiment.model.logits
    blocks = view.row_blocks(COLUMNS)
    return {
        "train_top1": top1_accuracy(embeddings, train.labels, blocks, logits, num_special_of(train)),
        "map_at_r": map_at_r(view.embeddings(), view.test.labels),
    }


TRAIN_TOP1 = Metric(
    {"train_top1": "top-1 accuracy on the training split", "map_at_r": f"MAP@{RETRIEVED}"}, _measure
)
