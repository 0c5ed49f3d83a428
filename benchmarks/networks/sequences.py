"""Networks of one sequence of tokens per example; token 0 is padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.model.extractors.extractor import Extractor

TOKENS, LENGTH, DIM, HEADS = 200, 16, 64, 4


class OfTokens(Extractor):
    """What a body makes of the tokens, [b, features], embedded."""

    def __init__(
        self, body: nn.Module, features: int, choose: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.inputs = (ArraySpec("tokens", "feature", (EXAMPLES, LENGTH), "int64", below=TOKENS),)
        self.body = body
        self.embedding = nn.Linear(features, DIM)
        self._choose = choose or (lambda output: output)

    def forward(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self._choose(self.body(tokens)))
        return embeddings


def last_of(body: nn.Module, features: int) -> Extractor:
    """An extractor that takes what the body makes of the last token."""
    return OfTokens(body, features, lambda output: output[:, -1])


class TorchEncoder(nn.Module):
    """torch's own layers, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(TOKENS, DIM)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 2 * DIM, dropout=0.1, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        output: Tensor = self.layers(self.token(tokens) + self.position, mask=mask, is_causal=True)
        return output


class Block(nn.Module):
    """Attention and two layers, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, DIM // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (DIM // HEADS) ** -0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        attention = scores.masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.out((attention @ v).transpose(1, 2).reshape(batch, length, DIM))
        output: Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return output


class TiedDecoder(nn.Module):
    """The embedding of the tokens is also the output layer; both parts come out."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(DIM)
        self.logits = nn.Linear(DIM, TOKENS, bias=False)
        self.logits.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        hidden = self.norm(self.blocks(hidden))
        return torch.cat([hidden, self.logits(hidden)], -1)


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.token, self.recurrent = nn.Embedding(TOKENS, DIM), cell(DIM, DIM, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.recurrent(self.token(tokens))[0]
        return output


def _two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM), nn.ReLU())


class BagByGather(nn.Module):
    """The mean of the tokens' rows, padding left out."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.layers = nn.Embedding(TOKENS, DIM), _two_layers()

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.token(tokens)
        present = (tokens != 0).to(rows.dtype)
        mean = (rows * present.unsqueeze(-1)).sum(1) / present.sum(1, keepdim=True).clamp(min=1)
        output: Tensor = self.layers(mean)
        return output


class CharacterConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.convolution = nn.Embedding(TOKENS, DIM), nn.Conv1d(DIM, DIM, 3, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.relu(self.convolution(self.token(tokens).transpose(1, 2))).amax(-1)


def torch_encoder() -> Extractor:
    return last_of(TorchEncoder(), DIM)


def tied_decoder() -> Extractor:
    return last_of(TiedDecoder(), DIM + TOKENS)


def lstm() -> Extractor:
    return last_of(Recurrent(nn.LSTM), DIM)


def gru() -> Extractor:
    return last_of(Recurrent(nn.GRU), DIM)


def embedding_bag() -> Extractor:
    return OfTokens(nn.Sequential(nn.EmbeddingBag(TOKENS, DIM, mode="mean"), _two_layers()), DIM)


def bag_by_gather() -> Extractor:
    return OfTokens(BagByGather(), DIM)


def character_convolution() -> Extractor:
    return OfTokens(CharacterConvolution(), DIM)
