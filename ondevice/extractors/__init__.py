"""φ: the feature extractors by name.  An extractor is an nn.Module, images -> embeddings, whose last layer is `embedding`.

Adding one is a module file and a line in `ARCHITECTURES`.  It must treat every example by itself (no BatchNorm), or
micro-batches would no longer be exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ondevice.extractors.mobilenet_v3 import LARGE, SMALL, MobileNetV3
from ondevice.extractors.small_images import ThreeConvolutions, TwoConvolutions
from ondevice.vocabulary import StepSpec

ARCHITECTURES: dict[str, Callable[[StepSpec], nn.Module]] = {
    "mobilenet_v3_large": lambda spec: MobileNetV3(LARGE, spec.image_shape[0], spec.embedding_dim),
    "mobilenet_v3_small": lambda spec: MobileNetV3(SMALL, spec.image_shape[0], spec.embedding_dim),
    "two_convolutions": lambda spec: TwoConvolutions(spec.image_shape, spec.embedding_dim),
    "three_convolutions": lambda spec: ThreeConvolutions(spec.image_shape, spec.embedding_dim),
}


def build_extractor(spec: StepSpec, seed: int = 0) -> nn.Module:
    """A freshly initialised extractor; the global random state of torch is left as it was."""
    if spec.architecture not in ARCHITECTURES:
        raise ValueError(f"architecture is {spec.architecture!r}; expected one of {', '.join(ARCHITECTURES)}")
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
