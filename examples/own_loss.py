"""A network of several inputs and a loss of its own: a picture, words with a mask, and numbers.

fedss export --model examples/own_loss.py:Advert --objective examples/own_loss.py:Margin --image-size 32 --out step
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ondevice.contract.step_signature import EXAMPLES, ArraySpec, rows_of
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, StepSpec
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.pixels import Pixels, image_inputs


class Advert(Extractor):
    """It says which arrays an example has; clients hand them over as they are."""

    def __init__(self, spec: StepSpec, vocabulary: int = 1000, length: int = 8, numbers: int = 3) -> None:
        super().__init__()
        self.inputs = (
            *image_inputs(spec),
            ArraySpec("tokens", "feature", (EXAMPLES, length), "int64", below=vocabulary),
            ArraySpec("mask", "feature", (EXAMPLES, length), "uint8", below=2),
            ArraySpec("numbers", "feature", (EXAMPLES, numbers)),
        )
        # A text may be cut where nothing but padding follows: `fedss export --lengths 4,8`.
        self.sequences = ("tokens", "mask")
        self.pixels = Pixels(spec)
        self.picture = nn.Conv2d(spec.image_shape[0], 16, 4, stride=4)
        self.words = nn.Embedding(vocabulary, 16)
        self.embedding = nn.Linear(16 + 16 + numbers, spec.embedding_dim)

    def forward(self, images: Tensor, tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        picture = torch.relu(self.picture(self.pixels(images))).mean((2, 3))
        counts = mask.to(numbers.dtype).unsqueeze(2)
        # One is added, so that an example without words is no 0 / 0.
        words = (self.words(tokens) * counts).sum(1) / (counts.sum(1) + 1)
        embeddings: Tensor = self.embedding(torch.cat([picture, words, numbers], 1))
        return embeddings


class Margin:
    """Every other class of the slice should score less than the own one by a margin, smoothly."""

    def __init__(self, spec: StepSpec) -> None:
        self._dim = spec.embedding_dim

    def inputs(self) -> tuple[ArraySpec, ...]:
        """A table, with the side array that FedSS's samplers give, and a label."""
        rows = rows_of(COLUMNS)
        return (
            ArraySpec(COLUMNS, "table", (rows, self._dim)),
            ArraySpec("adjust", "side", (rows,), padding=float(EXCLUDED)),
            ArraySpec("labels", "label", (EXAMPLES,), "int64", positions_in=COLUMNS),
        )

    def losses(self, embeddings: Tensor, arrays: Mapping[str, Tensor]) -> Tensor:
        """`arrays` has the features by name too."""
        columns, labels = arrays[COLUMNS], arrays["labels"]
        scores = embeddings @ columns.t()
        own = (embeddings * columns[labels]).sum(1, keepdim=True)
        is_other = (labels[:, None] != torch.arange(columns.shape[0], device=labels.device)).to(scores.dtype)
        losses: Tensor = (F.softplus(scores + arrays["adjust"] - own + 1) * is_other).sum(1)
        return losses
