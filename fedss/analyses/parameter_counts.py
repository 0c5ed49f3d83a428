"""How many numbers a model has: its extractor, and a head that grows with the classes."""

from __future__ import annotations

import math
from functools import cache

from fedss.api.errors import UsageError
from ondevice.backends.eager import initial_parameters
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import check_architecture


@cache
def extractor_parameters(architecture: str, embedding_dim: int, image_size: int = 224) -> int:
    """|φ| with a bottleneck of d, on colour images."""
    try:
        check_architecture(architecture)
        spec = StepSpec(architecture, embedding_dim, image_shape=(3, image_size, image_size))
        weights = initial_parameters(spec, 0)
    except ValueError as error:
        raise UsageError(f"--architecture {architecture} with d = {embedding_dim}: {error}") from None
    return sum(math.prod(value.shape) for value in weights.values())


def head_share(extractor: int, embedding_dim: int, num_classes: int) -> float:
    """The part of the model that is classification layer: d n of |φ| + d n."""
    head = embedding_dim * num_classes
    return head / (extractor + head)
