"""φ: the feature extractors by name.  An extractor is an nn.Module, images -> embeddings, whose last layer is `embedding`.

Adding one is a module file, and a function and a line here.  It must treat every example by itself (no BatchNorm), or
micro-batches would no longer be exact.

torch is imported when an extractor is built, not to know its name: a wrong name is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ondevice.contract.vocabulary import StepSpec

if TYPE_CHECKING:
    from torch import nn


def _mobilenet_v3_large(spec: StepSpec) -> nn.Module:
    from ondevice.model.extractors.mobilenet_v3 import LARGE, MobileNetV3

    return MobileNetV3(LARGE, spec.image_shape[0], spec.embedding_dim)


def _mobilenet_v3_small(spec: StepSpec) -> nn.Module:
    from ondevice.model.extractors.mobilenet_v3 import SMALL, MobileNetV3

    return MobileNetV3(SMALL, spec.image_shape[0], spec.embedding_dim)


def _two_convolutions(spec: StepSpec) -> nn.Module:
    from ondevice.model.extractors.small_images import TwoConvolutions

    return TwoConvolutions(spec.image_shape, spec.embedding_dim)


def _three_convolutions(spec: StepSpec) -> nn.Module:
    from ondevice.model.extractors.small_images import ThreeConvolutions

    return ThreeConvolutions(spec.image_shape, spec.embedding_dim)


ARCHITECTURES: dict[str, Callable[[StepSpec], nn.Module]] = {
    "mobilenet_v3_large": _mobilenet_v3_large,
    "mobilenet_v3_small": _mobilenet_v3_small,
    "two_convolutions": _two_convolutions,
    "three_convolutions": _three_convolutions,
}


def build_extractor(spec: StepSpec, seed: int = 0) -> nn.Module:
    """A freshly initialised extractor; the global random state of torch is left as it was."""
    if spec.architecture not in ARCHITECTURES:
        raise ValueError(f"architecture is {spec.architecture!r}; expected one of {', '.join(ARCHITECTURES)}")
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ARCHITECTURES[spec.architecture](spec)


def trainable_names(extractor: nn.Module, spec: StepSpec) -> tuple[str, ...]:
    """The tensors that learn, in the order of the training step's inputs and gradients: that of the module."""
    names = tuple(name for name, _ in extractor.named_parameters())
    if spec.train == "all":
        return names
    if spec.train == "last-two":
        return tuple(name for name in names if name.startswith("embedding."))
    return ()
