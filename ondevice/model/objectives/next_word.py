"""Next-word prediction: at every place of a text, sampled softmax over the rows of the classifier's table.

The text is the feature `tokens`, and the label the word that follows it; both are positions among the client's rows, so an
extractor that reads its words from the same table (`tied_transformer`) makes it one table used twice.  An example's loss is
the mean over its places.  Special tokens (`ondevice.contract.tokens`) are read but not predicted: a place whose next token
is one does not count, and the sampler excludes them from what a target competes with.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.tokens import NUM_SPECIAL, PADDING, TOKENS
from ondevice.contract.vocabulary import COLUMNS, StepSpec
from ondevice.model.extractors.transformer import is_last_word, next_tokens
from ondevice.model.objectives.sampled_softmax import (
    SampledSoftmax,
    class_logits,
    is_traced,
    sampled_softmax_losses,
)


class NextWord:
    """The table and side array of sampled softmax; [b, length, d] embeddings, one per place."""

    def __init__(self, spec: StepSpec) -> None:
        self._logits = spec.logits
        self._inputs = SampledSoftmax(spec).inputs()

    def inputs(self) -> tuple[ArraySpec, ...]:
        return self._inputs

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        if embeddings.dim() != 3:
            raise ValueError(
                f"the extractor gives {list(embeddings.shape)}; next_word takes an output per place, [b, length, d]: "
                "choose the objective sampled_softmax, or another extractor"
            )
        batch, length, dim = embeddings.shape
        tokens = arrays[TOKENS]
        # The label follows the last word; behind it there is padding, which is 0.
        targets = next_tokens(tokens) + is_last_word(tokens).to(tokens.dtype) * arrays["labels"][:, None]
        is_counted = (tokens != PADDING) & (targets >= NUM_SPECIAL)
        counts = is_counted.to(embeddings.dtype)
        vectors, words = embeddings.reshape(batch * length, dim), targets.reshape(batch * length)
        if is_traced(embeddings):
            of_places = self._losses_of(vectors, words, arrays)
        else:
            # Numbers say which places count, about half of a chat's: nothing is computed for the others.
            at = is_counted.reshape(-1).nonzero().squeeze(1)
            some = self._losses_of(vectors[at], words[at], arrays)
            of_places = torch.zeros_like(vectors[:, 0]).index_copy(0, at, some)
        places = counts.sum(1)
        # An example without a place to predict loses nothing, instead of 0 / 0.
        none = (places == 0).to(embeddings.dtype)
        losses: Tensor = (of_places.reshape(batch, length) * counts).sum(1) / (places + none)
        return losses

    def _losses_of(self, vectors: Tensor, words: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        """[k, d] and the words that follow -> [k]"""
        logits = class_logits(vectors, arrays[COLUMNS], self._logits)
        return sampled_softmax_losses(logits, arrays["adjust"], words)
