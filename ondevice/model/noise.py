"""Dropout, stochastic depth and their like as functions of an input: noise that the client draws for every example.

Whatever a network drops, it drops by uniform numbers: `nn.Dropout` in all dimensions, functional dropout, attention's,
alpha dropout, timm's DropPath and torchvision's StochasticDepth end in the same few ATen operators.  While noise is given,
these take the step's numbers instead of torch's, in the order in which the network asks, and everything else is the
network's own: what is kept is divided by 1 - p, as in training anywhere.

A number u keeps what it decides about where u < 1 - p.  Noise is a multiple of 2^-24, and so is the threshold, rounded up:
the comparison is exact in every precision, and every runtime keeps the same.

    noise/PATH      [b, n]: n numbers per example for the module at PATH; its second draw is noise/PATH:2

Without noise the modules that draw are in evaluation mode, as with randomness off: evaluation and embeddings have none.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ondevice.contract.step_signature import EXAMPLES, ArraySpec
from ondevice.model.extractors.foreign import UnusableModel
from ondevice.model.randomness import at_work, kinds_of, random_modules, switch_off

if TYPE_CHECKING:
    from ondevice.model.extractors.extractor import Extractor

aten = torch.ops.aten
STEPS = 2.0**24
"""Noise has so many values."""
FEW, MORE = 2, 3
"""Examples that a network is tried on: what grows with them is drawn per example."""
ADVICE = "switch it off (--randomness off), or write the model without it"

RunOn = Callable[[int], object]
"""Computes the network once, on so many examples."""
Numbers = Callable[[Sequence[int]], Tensor]
"""Uniform numbers of a shape."""


@dataclass(frozen=True)
class Site:
    """One draw of the network: which input decides it, and how that lies in what the network asks for."""

    array: ArraySpec
    axis: int
    """The dimension that counts examples, each with `per_example` entries one after the other."""
    per_example: int
    rest: tuple[int, ...]
    """The other dimensions."""

    def laid_out(self, noise: Tensor) -> Tensor:
        """[b, n] in the shape of the draw."""
        return noise.reshape(len(noise) * self.per_example, *self.rest).movedim(0, self.axis)


@dataclass(frozen=True)
class Noise:
    """All draws of a network in their order, and the modules that are in training mode while noise is given."""

    sites: tuple[Site, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:
        return tuple(site.array for site in self.sites)


class WithNoise(nn.Module):
    """The extractor as it is trained: what `StepSignature.embedded` lists, then its noise -> what the extractor gives."""

    def __init__(self, extractor: Extractor) -> None:
        super().__init__()
        self.extractor = extractor

    def forward(self, *inputs: Tensor) -> Tensor:
        taken = len(inputs) - len(self.extractor.noise.sites)
        with noise_given(self.extractor, inputs[taken:]):
            outputs: Tensor = self.extractor(*inputs[:taken])
        return outputs


@contextmanager
def noise_given(extractor: Extractor, noise: Sequence[Tensor]) -> Iterator[None]:
    """Inside `with`, the extractor computes once as in training, with these arrays of its sites."""
    if not extractor.noise.sites:
        yield
        return
    modules = [extractor.get_submodule(path) for path in extractor.noise.modules]
    for module in modules:
        module.training = True
    try:
        given = _Given(extractor.noise.sites, noise)
        with given:
            yield
        given.check_all_are_taken()
    finally:
        for module in modules:
            module.training = False


def take_noise(network: nn.Module, run: RunOn) -> tuple[Noise, str | None]:
    """The network's draws as inputs, and a remark for the user; its random modules are in evaluation mode afterwards.

    UnusableModel for a draw that noise cannot decide: one that is not uniform, or is not made for every example.
    """
    few, more = (_recorded(network, run, examples) for examples in (FEW, MORE))
    beyond = random_modules(network, lambda: _recorded(network, run, FEW))
    if beyond:
        raise UnusableModel(
            f"{_named(network, beyond[0])} draws random numbers that are not uniform, which noise cannot stand for: {ADVICE}"
        )
    modules = switch_off(network, lambda: run(FEW))
    if not few:
        return Noise(), None
    if [path for path, _ in few] != [path for path, _ in more]:
        raise UnusableModel(
            f"the network draws {len(few)} times for {FEW} examples and {len(more)} times for {MORE}; expected the same "
            f"draws for any number of examples: {ADVICE}"
        )
    sites = []
    seen: Counter[str] = Counter()
    for (path, shape), (_, larger) in zip(few, more, strict=True):
        seen[path] += 1
        name = f"noise/{path}" if seen[path] == 1 else f"noise/{path}:{seen[path]}"
        sites.append(_site(name, shape, larger, _named(network, path)))
    numbers = sum(math.prod(site.array.sizes({EXAMPLES: 1})) for site in sites)
    return Noise(tuple(sites), modules), (
        f"randomness by noise of the client in {len(modules)} modules: {kinds_of(network, modules)}; "
        f"{numbers:,} numbers ({4 * numbers:,} bytes) per example (--randomness input)"
    )


def _site(name: str, few: tuple[int, ...], more: tuple[int, ...], module: str) -> Site:
    grown = [axis for axis, sizes in enumerate(zip(few, more, strict=False)) if len(set(sizes)) > 1]
    if len(few) != len(more) or len(grown) != 1 or few[grown[0]] * MORE != more[grown[0]] * FEW:
        raise UnusableModel(
            f"{module} draws {list(few)} random numbers for {FEW} examples and {list(more)} for {MORE}; expected numbers "
            f"for every example, or micro-batches would not be exact: {ADVICE}"
        )
    (axis,) = grown
    per_example, rest = few[axis] // FEW, (*few[:axis], *few[axis + 1 :])
    array = ArraySpec(name, "noise", (EXAMPLES, per_example * math.prod(rest)))
    return Site(array, axis, per_example, rest)


def _named(network: nn.Module, path: str) -> str:
    return f"{type(network.get_submodule(path)).__name__} at {path or 'the top of the model'}"


class _Draws(TorchDispatchMode, ABC):
    """Inside `with`, uniform random numbers are those of `numbers`."""

    @abstractmethod
    def numbers(self, shape: Sequence[int]) -> Tensor: ...

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        draw = DRAWS.get(func)
        return func(*args, **(kwargs or {})) if draw is None else draw(self.numbers, *args, **(kwargs or {}))


class _Recording(_Draws):
    """Everything is kept, and what was asked for is written down."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._paths = paths
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def numbers(self, shape: Sequence[int]) -> Tensor:
        self.asked.append((self._paths[-1], tuple(shape)))
        return torch.zeros(shape)


def _recorded(network: nn.Module, run: RunOn, examples: int) -> list[tuple[str, tuple[int, ...]]]:
    """Path of the module and shape of every draw."""
    with at_work(network) as paths:
        recording = _Recording(paths)
        with recording:
            run(examples)
    return recording.asked


class _Given(_Draws):
    """One array after the other."""

    def __init__(self, sites: Sequence[Site], noise: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = list(zip(sites, noise, strict=True))

    def numbers(self, shape: Sequence[int]) -> Tensor:
        site, noise = self._left.pop(0) if self._left else (None, None)
        laid_out = None if site is None or noise is None else site.laid_out(noise)
        if laid_out is None or laid_out.shape != torch.Size(shape):
            expected = "none" if site is None else f"those of {site.array.name}"
            raise UnusableModel(
                f"the network draws {list(shape)} random numbers where it drew {expected} when it was built; expected the "
                f"same draws in every step: {ADVICE}"
            )
        return laid_out

    def check_all_are_taken(self) -> None:
        if self._left:
            raise UnusableModel(
                f"the network did not draw {self._left[0][0].array.name}, as it did when it was built; expected the same "
                f"draws in every step: {ADVICE}"
            )


def kept(noise: Tensor, probability: float) -> Tensor:
    """Where something of this probability comes true."""
    return noise < math.ceil(probability * STEPS) / STEPS


def _bernoulli(numbers: Numbers, x: Tensor, p: float = 0.5, **_: object) -> Tensor:
    return kept(numbers(x.shape), p).to(x.dtype)


def _bernoulli_in_place(numbers: Numbers, x: Tensor, p: float = 0.5, **_: object) -> Tensor:
    return x.copy_(_bernoulli(numbers, x, p))


def _dropout(numbers: Numbers, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """What torch makes of dropout where it traces; p = 1 draws nothing, here as in eager."""
    if train is False or p in (0, 1):
        everything = torch.full(x.shape, p != 1, dtype=torch.bool, device=x.device)
        return x * (0.0 if p == 1 else 1.0), everything
    mask = kept(numbers(x.shape), 1 - p)
    return x * (mask.to(x.dtype) / (1 - p)), mask


def _rand(numbers: Numbers, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return numbers(size).to(dtype or torch.get_default_dtype())


def _rand_like(numbers: Numbers, x: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return numbers(x.shape).to(dtype or x.dtype)


def _uniform_in_place(
    numbers: Numbers, x: Tensor, low: float = 0.0, high: float = 1.0, **_: object
) -> Tensor:
    return x.copy_(low + (high - low) * numbers(x.shape).to(x.dtype))


DRAWS: dict[object, Callable[..., Any]] = {
    aten.bernoulli_.float: _bernoulli_in_place,
    aten.bernoulli.p: _bernoulli,
    aten.native_dropout.default: _dropout,
    aten.rand.default: _rand,
    aten.rand_like.default: _rand_like,
    aten.uniform_.default: _uniform_in_place,
}
"""ATen's operators that draw uniform numbers, and what they do with given ones."""
