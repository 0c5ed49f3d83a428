"""φ: the feature extractors by name.  An extractor is an nn.Module, raw features -> embeddings; it ends in `embedding`.

Adding one of ours is a module file here and a line in `ARCHITECTURES`; anybody else's has a colon in its name (`foreign`).
An extractor must treat every example by itself (no BatchNorm over a batch), or micro-batches would no longer be exact.

torch is imported when an extractor is built, not to know its name: a wrong name is refused at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from ondevice.contract.vocabulary import Parameters, StepSpec
from ondevice.model.extractors.foreign import build_foreign, check_name

if TYPE_CHECKING:
    from torch import Tensor

    from ondevice.model.extractors.extractor import Extractor

ARCHITECTURES = {
    "mobilenet_v3_large": "ondevice.model.extractors.mobilenet_v3:large",
    "mobilenet_v3_small": "ondevice.model.extractors.mobilenet_v3:small",
    "mobilenet_v2": "ondevice.model.extractors.mobilenet_v2:MobileNetV2",
    "two_convolutions": "ondevice.model.extractors.small_images:TwoConvolutions",
    "three_convolutions": "ondevice.model.extractors.small_images:ThreeConvolutions",
    "token_transformer": "ondevice.model.extractors.transformer:TokenTransformer",
    "tied_transformer": "ondevice.model.extractors.transformer:TiedTransformer",
    "sparse_network": "ondevice.model.extractors.sparse_network:SparseNetwork",
    "bag_of_words": "ondevice.model.extractors.bag_of_words:BagOfWords",
}
"""Name -> `module:callable`, which makes an extractor of a `StepSpec`."""


def check_architecture(name: str) -> None:
    """ValueError for a name that no extractor has, before torch is imported."""
    check_name(name, list(ARCHITECTURES))


def build_extractor(spec: StepSpec, seed: int = 0) -> Extractor:
    """A freshly initialised extractor, adapters included; the global random state of torch is left as it was."""
    check_architecture(spec.architecture)
    import torch

    from ondevice.model.extractors.wrapped import wrap
    from ondevice.model.low_rank import add_adapters

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if spec.architecture in ARCHITECTURES:
            module, _, build = ARCHITECTURES[spec.architecture].partition(":")
            extractor: Extractor = getattr(import_module(module), build)(spec)
            add_adapters(extractor, spec)
        else:
            extractor = wrap(spec, build_foreign(spec))
    return extractor


def state_of(extractor: Extractor) -> dict[str, Tensor]:
    """Every tensor that makes the extractor what it is: parameters, and then what it keeps beside them (statistics).

    What follows from the architecture alone (indices, masks) is made anew when it is built.
    """
    kept = extractor.state_dict(keep_vars=True)
    buffers = {name: tensor for name, tensor in extractor.named_buffers() if name in kept}
    return {
        **dict(extractor.named_parameters()),
        **{name: tensor for name, tensor in buffers.items() if tensor.is_floating_point()},
    }


def load_state(extractor: Extractor, tensors: Parameters, what: str) -> None:
    """Take these values; ValueError for a tensor that is missing, unknown or of another shape."""
    import torch

    state = state_of(extractor)
    check_parameters(tensors, {name: tuple(tensor.shape) for name, tensor in state.items()}, what)
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(torch.from_numpy(np.array(tensors[name])))


def check_parameters(given: Parameters, expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Same names, same shapes; says which tensor is missing, unknown or of another shape."""
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    if missing or unknown:
        raise ValueError(f"{what}: missing tensors {missing or 'none'}, unknown tensors {unknown or 'none'}")
    for name, shape in expected.items():
        if given[name].shape != shape:
            raise ValueError(f"{what}: {name} has shape {given[name].shape}, expected {shape}")
