"""The sampled softmax loss and its relatives, in torch: the one place for their mathematics.

    cosine logits   o_j = 20 · f·w_j / (|f| |w_j|)                     (A.2)
    dot logits      o_j = f·w_j + b_j, b_j the last entry of the column
    loss            −o_t + log( exp(o_t) + Σ_{j ≠ t} exp(o_j + adjust_j) )

`adjust` alone chooses among them (`ondevice.client.samplers`): −log expected count for FedSS (Eq. 5), EXCLUDED
on the positives for NegOnly (Eq. 7), zero over P_k for PosOnly (Eq. 8), zero over every class for full softmax (Eq. 2), and
EXCLUDED on padding.  It is not added to the target's own logit: a positive's adjustment is log 1 = 0 under every loss.

What is exported is written in operators that every exporter lowers well: the target is picked by a comparison, not by an
index.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from ondevice.contract.step_signature import EXAMPLES, ArraySpec, rows_of
from ondevice.contract.vocabulary import COLUMNS, COSINE_SCALE, EXCLUDED, LogitKind, StepSpec


class SampledSoftmax:
    """One table with a row per class, and `adjust` beside it."""

    def __init__(self, spec: StepSpec) -> None:
        self._logits = spec.logits
        self._dim = spec.column_dim

    def inputs(self) -> tuple[ArraySpec, ...]:
        rows = rows_of(COLUMNS)
        return (
            ArraySpec(COLUMNS, "table", (rows, self._dim)),
            ArraySpec("adjust", "side", (rows,), padding=float(EXCLUDED)),
            ArraySpec("labels", "label", (EXAMPLES,), "int64", positions_in=COLUMNS),
        )

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        if embeddings.dim() != 2:
            raise ValueError(
                f"the extractor gives {list(embeddings.shape)}; sampled_softmax takes [b, d]: choose the objective "
                "next_word, or another extractor"
            )
        logits = class_logits(embeddings, arrays[COLUMNS], self._logits)
        return sampled_softmax_losses(logits, arrays["adjust"], arrays["labels"])


def class_logits(features: Tensor, columns: Tensor, kind: LogitKind) -> Tensor:
    """[B, d] features and [m, column_dim] columns -> [B, m] logits."""
    if kind == "dot":
        return features @ columns[:, :-1].t() + columns[:, -1]
    return COSINE_SCALE * (unit_rows(features) @ unit_rows(columns).t())


SMALLEST_SQUARE = 1e-6
"""Of a row's length: one shorter than 0.001 is divided by 0.001 instead of by its length."""


def unit_rows(matrix: Tensor) -> Tensor:
    """Every row at length 1; those that are all but zero stay short.

    The gradient of a unit row goes with 1 / length, without bound: a zero row would be thrown a million steps away.  Below
    the smallest length it is that of a constant factor, at most 1,000; ordinary rows, of length 0.1 and more, are what they
    were to the last digit.  max(s, ε) = s + relu(ε − s), in operators that every lowering has.
    """
    squares = (matrix * matrix).sum(1, keepdim=True)
    return matrix * torch.rsqrt(squares + torch.relu(squares * -1.0 + SMALLEST_SQUARE))


def is_traced(tensor: Tensor) -> bool:
    """Whether a graph is being written down, in which no number may decide anything."""
    return torch.compiler.is_compiling() or type(tensor) is not Tensor


def sampled_softmax_losses(logits: Tensor, adjust: Tensor, labels: Tensor) -> Tensor:
    """Of every example, [B].  logits [B, m], adjust [m], labels [B] positions in the slice."""
    # Numbers, not a graph that is being traced, and targets without an adjustment: all losses but NegOnly.  Comparing every
    # position with the label would take five passes over [B, m], forward and backward, to say the same.
    if not is_traced(logits) and not adjust[labels].any():
        return functional.cross_entropy(logits + adjust, labels, reduction="none")
    positions = torch.arange(logits.shape[1], device=labels.device)
    is_target = (labels[:, None] == positions).to(logits.dtype)  # [B, m]
    adjusted = logits + adjust * (1 - is_target)
    target = (logits * is_target).sum(1)
    return torch.logsumexp(adjusted, 1) - target
