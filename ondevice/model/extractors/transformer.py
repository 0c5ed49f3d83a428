"""A small causal Transformer over tokens: pre-norm, GELU, learned positions; padding is token 0, behind the last word.

`TokenTransformer` has vectors of its own for the words.  `TiedTransformer` reads them from the rows of the classifier's
table: a word has one row, which serves where the word is read and where it is predicted, and only rows travel, never the
table.  Its outputs are one per place, for an objective that predicts every next word.

Attention is written in plain products, which every lowering has.  Masks are added: at a place that counts at least its own
word is seen, so that nothing is ever computed from EXCLUDED alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.contract.tokens import PADDING, TOKENS
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, StepSpec
from ondevice.model.extractors.arguments import sizes_of
from ondevice.model.extractors.extractor import Extractor


@dataclass(frozen=True)
class TiedSizes:
    """The width is that of the table's rows."""

    length: int = 20
    layers: int = 2
    heads: int = 4
    hidden: int = 128
    """Of the two layers between attentions."""


@dataclass(frozen=True)
class TransformerSizes(TiedSizes):
    vocabulary: int = 1000
    width: int = 64


class TokenTransformer(Extractor):
    """int64 [b, length] -> [b, d]: what the last word's place knows of the text."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        sizes = sizes_of(TransformerSizes, spec)
        shape = (EXAMPLES, sizes.length)
        self.inputs = (ArraySpec(TOKENS, "feature", shape, "int64", PADDING, below=sizes.vocabulary),)
        self.sequences = (TOKENS,)
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = CausalLayers(sizes.width, sizes)
        self.embedding = nn.Linear(sizes.width, spec.embedding_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.layers(self.words(tokens), tokens)
        embeddings: Tensor = self.embedding(at_the_last_word(places, tokens))
        return embeddings


class TiedTransformer(Extractor):
    """Positions [b, length] among the classifier's rows, and these rows -> [b, length, d]."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        sizes = sizes_of(TiedSizes, spec)
        self._dim = spec.embedding_dim
        self.places = sizes.length
        shape = (EXAMPLES, sizes.length)
        self.inputs = (ArraySpec(TOKENS, "feature", shape, "int64", PADDING, positions_in=COLUMNS),)
        self.sequences = (TOKENS,)
        self.layers = CausalLayers(self._dim, sizes)
        self.embedding = nn.Linear(self._dim, self._dim)

    def forward(self, tokens: Tensor, columns: Tensor) -> Tensor:
        # Under dot-product logits a column ends in its bias, which says nothing of a word that is read.
        words = F.embedding(tokens, columns[:, : self._dim]) * sqrt(self._dim)
        embeddings: Tensor = self.embedding(self.layers(words, tokens))
        return embeddings

    def summary(self, outputs: Tensor, *inputs: Tensor) -> Tensor:
        # At every place a word is predicted, so every place is held against the rows.
        return from_the_last_word(outputs, inputs[0])


class CausalLayers(nn.Module):
    """Vectors of words [b, length, width] -> what every place knows of the words up to it."""

    def __init__(self, width: int, sizes: TiedSizes) -> None:
        super().__init__()
        if width % sizes.heads:
            raise ValueError(f"heads is {sizes.heads}; expected a divisor of the width {width}")
        self.positions = nn.Parameter(0.02 * torch.randn(sizes.length, width))
        self.blocks = nn.ModuleList(Block(width, sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        is_later = (places > places[:, None]).to(words.dtype)
        is_padding = (tokens == PADDING).to(words.dtype)
        mask = (is_later + is_padding[:, None, None, :]) * float(EXCLUDED)  # [b, 1, length, length]
        x = words + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        known: Tensor = self.norm(x)
        return known


class Block(nn.Module):
    """x + attention(norm(x)), then x + two layers(norm(x))."""

    def __init__(self, width: int, sizes: TiedSizes) -> None:
        super().__init__()
        self._heads = sizes.heads
        self.norm1 = nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        # A bias would move all scores of a place alike, which changes no softmax: its gradient is 0 but for rounding.
        self.key = nn.Linear(width, width, bias=False)
        self.joined = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, sizes.hidden), nn.Linear(sizes.hidden, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self._attention(self.norm1(x), mask)
        output: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return output

    def _attention(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / sqrt(query.shape[3]) + mask
        seen = torch.softmax(scores, 3) @ value  # [b, heads, length, width / heads]
        joined: Tensor = self.joined(seen.transpose(1, 2).reshape(x.shape))
        return joined

    def _by_head(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self._heads, width // self._heads).transpose(1, 2)


def at_the_last_word(places: Tensor, tokens: Tensor) -> Tensor:
    """[b, length, width] -> [b, width]: of the place behind which only padding follows.  Picked by a comparison."""
    return (places * is_last_word(tokens).to(places.dtype)[:, :, None]).sum(1)


def from_the_last_word(places: Tensor, tokens: Tensor) -> Tensor:
    """[b, length, width] -> the same, the last word's place first, then the ones before it, then zeros for padding."""
    steps = torch.arange(tokens.shape[1], device=tokens.device)
    last = (tokens != PADDING).to(tokens.dtype).sum(1) - 1
    # A product with ones and zeros moves numbers and rounds none.
    is_wanted = steps + steps[:, None] == last[:, None, None]
    return is_wanted.to(places.dtype) @ places


def is_last_word(tokens: Tensor) -> Tensor:
    """[b, length]: a word, and nothing after it."""
    return (tokens != PADDING) & (next_tokens(tokens) == PADDING)


def next_tokens(tokens: Tensor) -> Tensor:
    """[b, length]: the token that follows, padding behind the last."""
    return torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], PADDING)], 1)
