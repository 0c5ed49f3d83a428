"""Transformers of the package `transformers`, small; it is no dependency of ours, so
`pip install transformers==5.22.2` first.

GPT-2 and Llama branch on their mask while they run, unless it is given and attention is written out.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from benchmarks.networks.sequences import DIM, HEADS, LENGTH, TOKENS, last_of
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.extractors.foreign import declare_torchvision_operators

SIZES = {
    "vocab_size": TOKENS,
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * DIM,
    "max_position_embeddings": LENGTH,
}


def _transformers() -> Any:
    """It imports torchvision where that is installed, for networks that are not ours."""
    declare_torchvision_operators()
    return importlib.import_module("transformers")


class LastHidden(nn.Module):
    """The last layer's output; padding is masked where a network wants a mask."""

    def __init__(self, network: Any, masked: bool = False) -> None:
        super().__init__()
        network.config.use_cache = False
        if masked:
            network.set_attn_implementation("eager")
        self.network, self._masked = network, masked

    def forward(self, tokens: Tensor) -> Tensor:
        mask = {"attention_mask": (tokens != 0).long()} if self._masked else {}
        output: Tensor = self.network(input_ids=tokens, **mask).last_hidden_state
        return output


def bert() -> Extractor:
    transformers = _transformers()

    config = transformers.BertConfig(**SIZES)
    return last_of(LastHidden(transformers.BertModel(config, add_pooling_layer=False)), DIM)


def albert() -> Extractor:
    transformers = _transformers()

    config = transformers.AlbertConfig(embedding_size=DIM // 2, **SIZES)
    return last_of(LastHidden(transformers.AlbertModel(config, add_pooling_layer=False)), DIM)


def distilbert() -> Extractor:
    transformers = _transformers()

    config = transformers.DistilBertConfig(
        vocab_size=TOKENS,
        dim=DIM,
        n_layers=2,
        n_heads=HEADS,
        hidden_dim=2 * DIM,
        max_position_embeddings=LENGTH,
    )
    return last_of(LastHidden(transformers.DistilBertModel(config)), DIM)


def gpt2() -> Extractor:
    transformers = _transformers()

    config = transformers.GPT2Config(
        vocab_size=TOKENS, n_embd=DIM, n_layer=2, n_head=HEADS, n_positions=LENGTH
    )
    return last_of(LastHidden(transformers.GPT2Model(config), masked=True), DIM)


def llama() -> Extractor:
    transformers = _transformers()

    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    return last_of(LastHidden(transformers.LlamaModel(config), masked=True), DIM)
