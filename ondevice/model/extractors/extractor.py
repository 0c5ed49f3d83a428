"""What every extractor is: a module that says which raw features it takes, and gives embeddings."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.pixels import Pixels, image_inputs


class Extractor(nn.Module):
    """`forward` takes the features of `inputs`, in that order, and gives embeddings [b, d]."""

    inputs: tuple[ArraySpec, ...]


class ImageExtractor(Extractor):
    """An extractor of one image per example; a subclass says what becomes of the normalised pixels."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        self.inputs = image_inputs(spec)
        self.pixels = Pixels(spec)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [b, C, H, W] -> [b, d]"""
        return self.embed(self.pixels(images))

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Normalised images [b, C, H, W] -> embeddings [b, d]."""
        ...
