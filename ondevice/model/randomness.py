"""Dropout, stochastic depth and their like, switched off where they are found: a step must give the same numbers twice.

The network stays in training mode but for the modules at work when a random number was drawn (and BatchNorm): in evaluation
mode some networks keep copies of what they computed from their parameters, which would then never learn.  That a number was
drawn is read off torch's random state, from one module's border to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ondevice.model.extractors.foreign import UnusableModel

Run = Callable[[], object]


def switch_off_randomness(network: nn.Module, run: Run) -> str | None:
    """`run` computes the network once, as training would.  Says which modules were switched off; None if none had to be."""
    switched = switch_off(network, run)
    if not switched:
        return None
    return f"randomness off in {len(switched)} modules: {kinds_of(network, switched)}"


def switch_off(network: nn.Module, run: Run) -> tuple[str, ...]:
    """Paths of the modules that are in evaluation mode from now on."""
    switched: list[str] = []
    while found := random_modules(network, run):
        for path in found:
            module = network.get_submodule(path)
            if not module.training:
                raise UnusableModel(
                    f"{type(module).__name__} at {path or 'the top of the model'} draws random numbers in evaluation mode "
                    "too; a step must give the same numbers twice: make it depend on self.training"
                )
            module.training = False
            switched.append(path)
    return tuple(switched)


def kinds_of(network: nn.Module, paths: Sequence[str]) -> str:
    """How many modules of which classes."""
    kinds = Counter(type(network.get_submodule(path)).__name__ for path in paths)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def random_modules(network: nn.Module, run: Run) -> list[str]:
    """Paths of the modules that drew random numbers themselves, and not by one of theirs."""
    found: dict[str, None] = {}
    last = torch.get_rng_state()

    def look(path: str) -> None:
        nonlocal last
        now = torch.get_rng_state()
        if not torch.equal(now, last):
            found[path] = None
            last = now

    with torch.random.fork_rng(devices=[]), at_work(network, look) as paths:
        run()
        look(paths[-1])
    return list(found)


@contextmanager
def at_work(network: nn.Module, at_border: Callable[[str], None] = lambda _: None) -> Iterator[list[str]]:
    """Inside `with`, the last path is that of the module at work; `at_border` hears of each that stops."""
    paths = [""]

    def entering(path: str) -> Any:
        def enter(_module: nn.Module, _arguments: object) -> None:
            at_border(paths[-1])
            paths.append(path)

        return enter

    def leave(_module: nn.Module, _arguments: object, _output: object) -> None:
        at_border(paths[-1])
        paths.pop()

    hooks = []
    for path, module in network.named_modules():
        hooks.append(module.register_forward_pre_hook(entering(path)))
        hooks.append(module.register_forward_hook(leave))
    try:
        yield paths
    finally:
        for hook in hooks:
            hook.remove()
