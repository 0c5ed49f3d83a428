"""Which classes a client asks for: labels -> P_k, draw N_k, S_k and the logit adjustments.

FedSS section 3.3: every client draws its negatives uniformly, without replacement, from the classes it does not hold,
with a seed that never leaves the device.  Its request is the sorted ids of S_k = P_k + N_k and nothing else.

The adjusted logit of Eq. 3-5 is o'_j = o_j − log(expected count of j in S_k).  A positive is always there: its expected
count is 1 and its adjustment 0.  Each of the n − |P_k| other classes is drawn with probability m / (n − |P_k|).  When every
class is sampled all adjustments are 0, and FedSS *is* full softmax.

One request hides P_k among N_k.  It claims no more: over many rounds the ids that keep returning are the positives.
"""

from __future__ import annotations

import numpy as np

from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import EXCLUDED, ClassSample, FloatArray, IntArray, RoundPlan


def sample_classes(labels: IntArray, plan: RoundPlan, private_seed: int) -> ClassSample:
    """S_k for one client and round; the same seed and round give the same sample."""
    positives = np.unique(labels)
    if not positives.size:
        raise ValueError("the client holds no examples, so it has no classes to ask for")
    if positives[0] < 0 or positives[-1] >= plan.num_classes:
        raise ValueError(
            f"labels reach from {positives[0]} to {positives[-1]}; expected 0 to {plan.num_classes - 1}"
        )
    num_others = plan.num_classes - len(positives)
    num_negatives = _num_negatives(plan, num_others)
    negatives = draw_negatives(positives, num_negatives, plan.num_classes, private_seed, plan.round_index)
    class_ids = np.concatenate([positives, negatives])
    order = np.argsort(class_ids)
    is_positive = (np.arange(len(class_ids)) < len(positives))[order]
    log_negative_count = np.log(num_negatives / num_others) if num_negatives else 0.0
    return ClassSample(
        class_ids=class_ids[order],
        is_positive=is_positive,
        log_expected_count=np.where(is_positive, 0.0, log_negative_count).astype(np.float32),
    )


def draw_negatives(
    positives: IntArray, num_negatives: int, num_classes: int, private_seed: int, round_index: int
) -> IntArray:
    """N_k: sorted, uniform without replacement from the classes that are not positives."""
    random = PortableRandom(private_seed, round_index, Purpose.NEGATIVES)
    ranks = random.subset(num_negatives, num_classes - len(positives))
    # The r-th class that is not a positive is r plus the number of positives before it: positives[i] − i of the
    # other classes come before positive i.
    return ranks + np.searchsorted(positives - np.arange(len(positives)), ranks, side="right")


def logit_adjustment(sample: ClassSample, plan: RoundPlan) -> FloatArray:
    """`adjust` of the training step: what is added to the logit of every class that is not the example's own.

    The one vector that tells the losses apart: the step's graph is the same for all of them.
    """
    adjust = -sample.log_expected_count
    if plan.method == "negatives_only":  # Eq. 7: the other positives push nothing away
        adjust = np.where(sample.is_positive, EXCLUDED, adjust)
    return adjust.astype(np.float32)


def _num_negatives(plan: RoundPlan, num_others: int) -> int:
    if plan.method == "positives_only":
        return 0
    if plan.method == "full_softmax":
        return num_others
    return min(plan.num_negatives, num_others)
