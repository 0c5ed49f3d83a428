"""A network from elsewhere as an extractor: pixels before it, an embedding of ours behind it, and what had to be done to it.

A network takes normalised images [b, C, H, W] and gives features [b, k].  A map of features [b, k, h, w] is averaged over
its pixels, a sequence [b, t, k] over its places, and several outputs of one shape (distillation heads) with each other.
An `Extractor` says itself what it takes and gives embeddings; it is taken as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.batch_norm import apply_batch_norm_policy
from ondevice.model.extractors.extractor import Extractor, ImageExtractor
from ondevice.model.extractors.foreign import UnusableModel
from ondevice.model.low_rank import add_adapters
from ondevice.model.noise import RunOn, take_noise
from ondevice.model.randomness import switch_off_randomness

PROBED = 2
"""Examples that a network is tried on when it is built."""


class Wrapped(ImageExtractor):
    """Pixels, the network as it came (`model`), and the embedding."""

    def __init__(self, spec: StepSpec, model: nn.Module) -> None:
        super().__init__(spec)
        self.model = model
        self._name = spec.architecture
        self._dim = spec.embedding_dim

    def add_embedding(self, num_features: int) -> None:
        self.embedding = nn.Linear(num_features, self._dim)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.features(images))
        return embeddings

    def features(self, images: Tensor) -> Tensor:
        """Normalised images -> [b, k]."""
        return pooled(self.model(images), self._name)


def wrap(spec: StepSpec, model: nn.Module) -> Extractor:
    """The network ready to be trained in exact micro-batches; `remarks` says what was done to it."""
    model = model.float().train()
    remarks = [apply_batch_norm_policy(model, spec.batch_norm)]
    extractor = model if isinstance(model, Extractor) else Wrapped(spec, model)
    features = _examples(extractor, spec, PROBED)
    if isinstance(extractor, Wrapped):
        without_embedding = extractor.features

        def run(examples: int) -> Tensor:
            images = extractor.pixels(*_examples(extractor, spec, examples))
            return _tried(without_embedding, spec, [images])

        remarks.append(_settle_randomness(extractor, spec, run))
        with torch.no_grad():
            extractor.add_embedding(run(PROBED).shape[1])
    else:
        remarks.append(
            _settle_randomness(
                extractor,
                spec,
                lambda examples: _tried(extractor, spec, _examples(extractor, spec, examples)),
            )
        )
    remarks.append(add_adapters(extractor, spec))
    embeddings = extractor.summary(_tried(extractor, spec, features), *features)
    expected = [PROBED, *extractor.embedding_shape(spec.embedding_dim)]
    if list(embeddings.shape) != expected:
        raise UnusableModel(
            f"{spec.architecture} gives {list(embeddings.shape)} for {PROBED} examples; expected embeddings "
            f"{expected} of an Extractor: embedding_dim is {spec.embedding_dim}"
        )
    extractor.idle = _without_gradient(extractor, embeddings)
    if extractor.idle:
        some = ", ".join(extractor.idle[:3]) + (", ..." if len(extractor.idle) > 3 else "")
        remarks.append(f"{len(extractor.idle)} parameters get no gradient and stay as they are: {some}")
    extractor.remarks = tuple(remark for remark in remarks if remark is not None)
    return extractor


def pooled(output: Any, name: str) -> Tensor:
    """Features [b, k] of whatever a network gives."""
    if isinstance(output, (tuple, list)) and output and all(isinstance(each, Tensor) for each in output):
        output = sum(output[1:], output[0]) / len(output)
    if not isinstance(output, Tensor):
        raise UnusableModel(
            f"{name} gives a {type(output).__name__}; expected a tensor of features: write a function that gives a "
            "module around it"
        )
    if output.dim() == 4:
        return output.mean((2, 3))
    if output.dim() == 3:
        return output.mean(1)
    if output.dim() != 2:
        raise UnusableModel(
            f"{name} gives {list(output.shape)}; expected features [b, k], [b, t, k] or [b, k, h, w]"
        )
    return output


def _settle_randomness(extractor: Extractor, spec: StepSpec, run: RunOn) -> str | None:
    """Off, or by noise of the client; says which modules it concerns."""
    if spec.randomness == "off":
        return switch_off_randomness(extractor, lambda: run(PROBED))
    extractor.noise, remark = take_noise(extractor, run)
    return remark


def _examples(extractor: Extractor, spec: StepSpec, count: int) -> list[Tensor]:
    """Behind its features an extractor takes the tables among whose rows they hold positions."""
    tables = dict.fromkeys(array.positions_in for array in extractor.inputs if array.positions_in)
    rows = [torch.randn(PROBED, spec.column_dim) for _ in tables]
    return [*(_example(array, count) for array in extractor.inputs), *rows]


def _example(array: ArraySpec, count: int) -> Tensor:
    shape = array.sizes({EXAMPLES: count})
    random = torch.Generator().manual_seed(0)
    if array.dtype == "float32":
        return torch.randn(shape, generator=random)
    most = array.below or (256 if array.dtype == "uint8" else 2)
    return torch.randint(0, most, shape, generator=random).to(getattr(torch, array.dtype))


def _tried(network: Any, spec: StepSpec, features: list[Tensor]) -> Tensor:
    """A network that cannot take the examples says so in its own words; ours say which network, and which examples."""
    try:
        embeddings: Tensor = network(*features)
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        shapes = ", ".join(str(list(feature.shape)) for feature in features)
        raise UnusableModel(
            f"{spec.architecture} cannot take {shapes}: {str(error).strip().splitlines()[0] or type(error).__name__}; "
            "choose another --image-size or --channels, or tell the network (timm's Transformers: "
            f"--model-arg img_size={spec.image_shape[-1]})"
        ) from error
    return embeddings


def _without_gradient(extractor: Extractor, embeddings: Tensor) -> tuple[str, ...]:
    """Parameters that the embeddings do not depend on, and those that the builder froze."""
    named = dict(extractor.named_parameters())
    learning = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    found = torch.autograd.grad(embeddings.square().sum(), list(learning.values()), allow_unused=True)
    reached = {name for name, gradient in zip(learning, found, strict=True) if gradient is not None}
    return tuple(name for name in named if name not in reached)
