"""φ: the feature extractors by name.  An extractor is an nn.Module, raw features -> embeddings; it ends in `embedding`.

Adding one is a module file here and a line in `ARCHITECTURES`.  It must treat every example by itself (no BatchNorm), or
micro-batches would no longer be exact.

torch is imported when an extractor is built, not to know its name: a wrong name is refused at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ondevice.contract.vocabulary import StepSpec

if TYPE_CHECKING:
    from ondevice.model.extractors.extractor import Extractor

ARCHITECTURES = {
    "mobilenet_v3_large": "ondevice.model.extractors.mobilenet_v3:large",
    "mobilenet_v3_small": "ondevice.model.extractors.mobilenet_v3:small",
    "two_convolutions": "ondevice.model.extractors.small_images:TwoConvolutions",
    "three_convolutions": "ondevice.model.extractors.small_images:ThreeConvolutions",
}
"""Name -> `module:callable`, which makes an extractor of a `StepSpec`."""


def build_extractor(spec: StepSpec, seed: int = 0) -> Extractor:
    """A freshly initialised extractor; the global random state of torch is left as it was."""
    if spec.architecture not in ARCHITECTURES:
        raise ValueError(f"architecture is {spec.architecture!r}; expected one of {', '.join(ARCHITECTURES)}")
    import torch

    module, _, build = ARCHITECTURES[spec.architecture].partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extractor: Extractor = getattr(import_module(module), build)(spec)
    return extractor


def trainable_names(extractor: Extractor, spec: StepSpec) -> tuple[str, ...]:
    """The tensors that learn, in the order of the training step's inputs and gradients: that of the module."""
    names = tuple(name for name, _ in extractor.named_parameters())
    if spec.train == "all":
        return names
    if spec.train == "last-two":
        return tuple(name for name in names if name.startswith("embedding."))
    return ()
