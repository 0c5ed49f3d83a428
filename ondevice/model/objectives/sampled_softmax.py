"""The sampled softmax loss and its relatives, in torch: the one place for their mathematics.

    cosine logits   o_j = 20 · f·w_j / (|f| |w_j|)                     (A.2)
    dot logits      o_j = f·w_j + b_j, b_j the last entry of the column
    loss            −o_t + log( exp(o_t) + Σ_{j ≠ t} exp(o_j + adjust_j) )

`adjust` alone chooses the objective (`class_sampling.logit_adjustment`): −log expected count for FedSS (Eq. 5), EXCLUDED
on the positives for NegOnly (Eq. 7), zero over P_k for PosOnly (Eq. 8), zero over every class for full softmax (Eq. 2), and
EXCLUDED on padding.  It is not added to the target's own logit: a positive's adjustment is log 1 = 0 under every loss.

Written in operators that every exporter lowers well: the target is picked by a comparison, not by an index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ondevice.contract.vocabulary import COSINE_SCALE, LogitKind


def class_logits(features: Tensor, columns: Tensor, kind: LogitKind) -> Tensor:
    """[B, d] features and [m, column_dim] columns -> [B, m] logits."""
    if kind == "dot":
        return features @ columns[:, :-1].t() + columns[:, -1]
    return COSINE_SCALE * (unit_rows(features) @ unit_rows(columns).t())


def unit_rows(matrix: Tensor) -> Tensor:
    """Every row at length 1; a zero row stays zero instead of dividing by zero."""
    return matrix * torch.rsqrt((matrix * matrix).sum(1, keepdim=True) + 1e-12)


def sampled_softmax_loss(logits: Tensor, adjust: Tensor, labels: Tensor, example_weight: Tensor) -> Tensor:
    """Weighted sum over the batch.  logits [B, m], adjust [m], labels [B] positions in the slice, example_weight [B]."""
    positions = torch.arange(logits.shape[1], device=labels.device)
    is_target = (labels[:, None] == positions).to(logits.dtype)  # [B, m]
    adjusted = logits + adjust * (1 - is_target)
    target = (logits * is_target).sum(1)
    return (example_weight * (torch.logsumexp(adjusted, 1) - target)).sum()
