"""What every extractor is: a module that says which raw features it takes, and gives embeddings."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from ondevice.contract.step_signature import ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.noise import Noise
from ondevice.model.pixels import Pixels, image_inputs


class Extractor(nn.Module):
    """`forward` takes the features of `inputs`, in that order, and gives embeddings [b, d].

    After the features it takes the tables whose rows they hold positions in: an extractor may read an objective's table.
    It may give more than [b, d] to an objective that wants more; `summary` makes embeddings of it.
    """

    inputs: tuple[ArraySpec, ...]
    sequences: tuple[str, ...] = ()
    """Features whose second size is a number of places, with padding behind a text that changes nothing: the network takes
    texts of fewer places as well."""
    idle: tuple[str, ...] = ()
    """Parameters that cannot learn: no gradient reaches them, or their builder froze them."""
    remarks: tuple[str, ...] = ()
    """What had to be done to a network from elsewhere, for the user to read."""
    places: int | None = None
    """How many embeddings an example has at the most, where that is not one."""
    noise: Noise = Noise()
    """What its random layers decide by in training; there is none where randomness is off."""

    def summary(self, outputs: Tensor, *inputs: Tensor) -> Tensor:  # noqa: ARG002 - what `forward` took
        """What `forward` gave, as embeddings: one per example, [b, d]; or [b, places, d], all that are held against the
        classifier's rows.  The first of them stands for the example, and zeros for those that it does not have."""
        return outputs

    def embedding_shape(self, dim: int) -> tuple[int, ...]:
        """Of what `summary` makes of one example, in embeddings of so many entries."""
        return (dim,) if self.places is None else (self.places, dim)


class ImageExtractor(Extractor):
    """An extractor of one image per example; a subclass says what becomes of the normalised pixels."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        if spec.architecture_arguments and ":" not in spec.architecture:
            raise ValueError(
                f"architecture_arguments are {dict(spec.architecture_arguments)}; {spec.architecture} is ours and takes none"
            )
        self.inputs = image_inputs(spec)
        self.pixels = Pixels(spec)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [b, C, H, W] -> [b, d]"""
        return self.embed(self.pixels(images))

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Normalised images [b, C, H, W] -> embeddings [b, d]."""
        ...
