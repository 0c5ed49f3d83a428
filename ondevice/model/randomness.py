"""Dropout, stochastic depth and their like, switched off where they are found: a step must give the same numbers twice.

The network stays in training mode but for the modules at work when a random number was drawn (and BatchNorm): in evaluation
mode some networks keep copies of what they computed from their parameters, which would then never learn.  That a number was
drawn is read off torch's random state, from one module's border to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ondevice.model.extractors.foreign import UnusableModel

Run = Callable[[], object]


def switch_off_randomness(network: nn.Module, run: Run) -> str | None:
    """`run` computes the network once, as training would.  Says which modules were switched off; None if none had to be."""
    switched: Counter[str] = Counter()
    while found := _random_modules(network, run):
        for path in found:
            module = network.get_submodule(path)
            if not module.training:
                raise UnusableModel(
                    f"{type(module).__name__} at {path or 'the top of the model'} draws random numbers in evaluation mode "
                    "too; a step must give the same numbers twice: make it depend on self.training"
                )
            module.training = False
            switched[type(module).__name__] += 1
    if not switched:
        return None
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(switched.items()))
    return f"randomness off in {switched.total()} modules: {kinds}"


def _random_modules(network: nn.Module, run: Run) -> list[str]:
    """Paths of the modules that drew random numbers themselves, and not by one of theirs."""
    found: dict[str, None] = {}
    paths = [""]
    last = torch.get_rng_state()

    def look() -> None:
        nonlocal last
        now = torch.get_rng_state()
        if not torch.equal(now, last):
            found[paths[-1]] = None
            last = now

    def entering(path: str) -> Any:
        def enter(_module: nn.Module, _arguments: object) -> None:
            look()
            paths.append(path)

        return enter

    def leave(_module: nn.Module, _arguments: object, _output: object) -> None:
        look()
        paths.pop()

    hooks = []
    for path, module in network.named_modules():
        hooks.append(module.register_forward_pre_hook(entering(path)))
        hooks.append(module.register_forward_hook(leave))
    try:
        with torch.random.fork_rng(devices=[]):
            run()
            look()
    finally:
        for hook in hooks:
            hook.remove()
    return list(found)
