"""Precision at 1, 3 and 5 for examples of several classes, and the parts of it that frequent and rare classes bring.

    P@k = 1/N Σ_i |the k classes of the highest log-likelihood ∩ the classes of example i| / k      (FedMLH, section 6)

A class's log-likelihood is the mean over the outputs that it stands for of log σ(o): one output per class for FedAvg, a
bucket of every table for FedMLH.  The frequent classes are the fewest that hold half of what training examples are labelled
with; the paper does not say where it draws the line.  What they bring and what the others bring adds up to P@k.
The score of a run is the mean of the three, by which the paper stops early.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ondevice.client.samplers import SAMPLERS
from ondevice.contract.choice import chosen
from ondevice.contract.vocabulary import CLASSES, NO_CLASS, FloatArray, IntArray, Outputs
from server_sim.metrics.count_sketch import retrieved_means
from server_sim.metrics.metric import EvaluationView, Metric

RANKS = (1, 3, 5)
FREQUENT_SHARE = 0.5


def frequent_classes(classes: IntArray, num_classes: int) -> npt.NDArray[np.bool_]:
    """[n]: whether a class is among the fewest that hold half of all labels; of equally frequent ones the first."""
    counts = np.bincount(classes[classes != NO_CLASS], minlength=num_classes)
    frequent = np.zeros(num_classes, bool)
    order = np.argsort(-counts, kind="stable")
    held_before = np.cumsum(counts[order]) - counts[order]
    frequent[order[held_before < FREQUENT_SHARE * counts.sum()]] = True
    return frequent


def log_likelihoods(logits: FloatArray) -> FloatArray:
    """log σ(o) of every output."""
    found: FloatArray = -np.logaddexp(np.float32(0), -logits)
    return found


def highest(scores: FloatArray, count: int) -> IntArray:
    """[b, count]: the classes of the highest scores, the highest first."""
    top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
    return np.take_along_axis(top, order, 1)


def class_outputs(view: EvaluationView) -> Outputs:
    """What a class stands for in the experiment's scheme."""
    choice = view.experiment.scheme.sampler()
    outputs = None if choice is None else getattr(chosen(SAMPLERS, choice, "sampler"), "outputs", None)
    if outputs is None or CLASSES not in view.test.features:
        raise ValueError(
            f"the metric precision needs examples with {CLASSES}, and a scheme whose classes are outputs: fedmlh or "
            f"fedavg_labels, not {view.experiment.scheme.name}; choose another evaluation.metric"
        )
    found: Outputs = outputs
    return found


def _measure(view: EvaluationView) -> dict[str, float]:
    num_classes = view.population.num_classes
    outputs = class_outputs(view)(np.arange(num_classes))
    frequent = frequent_classes(view.population.train.features[CLASSES], num_classes)
    count = min(RANKS[-1], num_classes)
    # [example, rank]: right, and of a frequent class.
    right = np.zeros((2, len(view.test), count), bool)
    for block, logits in view.embedding_blocks():
        top = highest(retrieved_means(log_likelihoods(logits), outputs), count)
        own = view.test.features[CLASSES][block]
        right[0, block] = (top[:, :, None] == own[:, None, :]).any(2)
        right[1, block] = right[0, block] & frequent[top]
    whole, of_frequent = ({k: float(hits[:, :k].sum() / (len(hits) * k)) for k in RANKS} for hits in right)
    return {
        "precision": float(np.mean(list(whole.values()))),
        **{f"p{k}": whole[k] for k in RANKS},
        **{f"p{k}_frequent": of_frequent[k] for k in RANKS},
        **{f"p{k}_infrequent": whole[k] - of_frequent[k] for k in RANKS},
    }


PRECISION = Metric(
    {
        "precision": "Mean of P@1, P@3 and P@5",
        **{f"p{k}": f"P@{k}" for k in RANKS},
        **{f"p{k}_frequent": f"P@{k} by frequent classes" for k in RANKS},
        **{f"p{k}_infrequent": f"P@{k} by infrequent classes" for k in RANKS},
    },
    _measure,
)
