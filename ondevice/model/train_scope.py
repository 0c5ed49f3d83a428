"""What learns: a list of presets and patterns, separated by commas, over the names of the extractor's parameters.

    all                everything
    head               the tables alone
    last-two           the tables and `embedding`
    norms-and-biases   norm layers, every bias, and `embedding`
    last-blocks N      the last N blocks and everything behind them
    lora:R             adapters of rank R (`low_rank`), and `embedding`; everything else stays
    PATTERN            names as `fnmatch` has them (`blocks.5.*`, `*.bias`); the path of a module is all of it

Tables always learn.  A network from elsewhere lies below `model.`; a pattern may leave that away.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ondevice.contract.vocabulary import StepSpec, scope_items
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.extractors.foreign import UnusableModel
from ondevice.model.low_rank import DOWN, UP

_NORMS = (nn.GroupNorm, nn.LayerNorm, _NormBase)
_LARGEST_LIST = 5


def trainable_names(extractor: Extractor, spec: StepSpec) -> tuple[str, ...]:
    """The tensors that learn, in the order of the training step's inputs and gradients: that of the module."""
    names = [name for name, _ in extractor.named_parameters()]
    chosen: set[str] = set()
    for item in scope_items(spec.train):
        word, _, count = item.partition(" ")
        if word == "last-blocks":
            chosen |= _last_blocks(extractor, names, int(count))
        elif item.startswith("lora:"):
            chosen |= {name for name in names if name.endswith((f".{DOWN}", f".{UP}"))} | _embedding(names)
        elif item in PRESETS:
            chosen |= PRESETS[item](extractor, names)
        else:
            chosen |= _matching(item, names)
    return tuple(name for name in names if name in chosen and name not in extractor.idle)


def _everything(_extractor: Extractor, names: Sequence[str]) -> set[str]:
    return set(names)


def _nothing(_extractor: Extractor, _names: Sequence[str]) -> set[str]:
    return set()


def _last_two(_extractor: Extractor, names: Sequence[str]) -> set[str]:
    return _embedding(names)


def _norms_and_biases(extractor: Extractor, names: Sequence[str]) -> set[str]:
    of_norms = {
        f"{path}.{name}"
        for path, module in extractor.named_modules()
        if isinstance(module, _NORMS) or type(module).__name__.endswith("Norm")
        for name, _ in module.named_parameters(recurse=False)
    }
    biases = {name for name in names if name.rpartition(".")[2] == "bias"}
    return (of_norms & set(names)) | biases | _embedding(names)


PRESETS: dict[str, Callable[[Extractor, Sequence[str]], set[str]]] = {
    "all": _everything,
    "head": _nothing,
    "last-two": _last_two,
    "norms-and-biases": _norms_and_biases,
}


def _embedding(names: Sequence[str]) -> set[str]:
    return {name for name in names if name.startswith("embedding.")}


def _matching(pattern: str, names: Sequence[str]) -> set[str]:
    wanted = (pattern, f"{pattern}.*", f"model.{pattern}", f"model.{pattern}.*")
    found = {name for name in names if any(fnmatchcase(name, each) for each in wanted)}
    if not found:
        shown = [name.removeprefix("model.") for name in names]
        paths = sorted({*shown, *(name.rpartition(".")[0] for name in shown)} - {""})
        near = difflib.get_close_matches(pattern, paths, _LARGEST_LIST, cutoff=0.3) or shown[:_LARGEST_LIST]
        raise UnusableModel(
            f"train has {pattern!r}, which no parameter matches; expected {', '.join(PRESETS)}, last-blocks N, lora:R or "
            f"names such as {', '.join(near)}"
        )
    return found


def _last_blocks(extractor: Extractor, names: Sequence[str], count: int) -> set[str]:
    """From the first parameter of the block on: what stands behind it in the module comes after it in the network."""
    blocks = _blocks(extractor, "")
    if not 1 <= count <= len(blocks):
        raise UnusableModel(
            f"train has 'last-blocks {count}', and the model has {len(blocks)} blocks"
            + (f", from {blocks[0]} to {blocks[-1]}" if blocks else "; name parameters by patterns instead")
        )
    first = next(at for at, name in enumerate(names) if name.startswith(f"{blocks[-count]}."))
    return set(names[first:])


def _blocks(module: nn.Module, path: str) -> list[str]:
    """Members of lists of layers, by their paths; a member that is made of such a list itself is a stage, not a block."""
    found: list[str] = []
    is_list = isinstance(module, (nn.Sequential, nn.ModuleList))
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if next(child.parameters(), None) is None:
            continue
        if not is_list or type(child) in (nn.Sequential, nn.ModuleList) or _is_stage(child):
            found += _blocks(child, inner)
        else:
            found.append(inner)
    return found


def _is_stage(module: nn.Module) -> bool:
    return any(
        isinstance(getattr(module, name, None), (nn.Sequential, nn.ModuleList))
        for name in ("blocks", "layers", "stages")
    )
