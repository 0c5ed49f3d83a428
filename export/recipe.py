"""What an export is asked for, refused where it cannot be, before torch is imported or anything computed.

Defaults are the paper's model at the size that fits a phone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ondevice.backends.opening import RUNTIMES, Runtime
from ondevice.contract.artifact import MANIFEST
from ondevice.contract.artifacts.lengths import check_sizes
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import check_architecture

LARGEST_MICRO_BATCH = 32
"""What is picked at the most where nobody asks for one: the paper's batch, beyond which nothing is gained."""


@dataclass(frozen=True)
class ExportRecipe:
    """Everything that shapes an artifact."""

    spec: StepSpec = field(default_factory=StepSpec)
    runtimes: tuple[Runtime, ...] = ("executorch", "onnxruntime", "onnxruntime-training")
    micro_batch: int = 4
    max_width: int = 1024
    """The most rows that a step takes of every table."""
    lengths: tuple[int, ...] = ()
    """Of texts, ascending, the last the network's own: a program each.  None is one program, of the network's own."""
    memory_budget_mb: int | None = None
    """Picks the micro-batch, instead of the one above: the largest whose process stays within so many megabytes."""
    weights: Path | None = None
    """Where the extractor starts from; None is a fresh one."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_architecture(self.spec.architecture)
        unknown = [runtime for runtime in self.runtimes if runtime not in RUNTIMES]
        if unknown or not self.runtimes:
            raise ValueError(
                f"runtimes are {', '.join(self.runtimes) or 'none'}; expected some of {', '.join(RUNTIMES)}"
            )
        if len(set(self.runtimes)) != len(self.runtimes):
            raise ValueError(f"runtimes are {', '.join(self.runtimes)}; expected each once")
        if self.micro_batch < 1:
            raise ValueError(f"micro_batch is {self.micro_batch}; expected 1 or more")
        if self.max_width < 2:
            raise ValueError(
                f"max_width is {self.max_width}; expected 2 or more: one row alone has nothing to learn from"
            )
        if self.lengths:
            check_sizes(self.lengths)
        if self.memory_budget_mb is not None and self.memory_budget_mb < 1:
            raise ValueError(f"memory_budget_mb is {self.memory_budget_mb}; expected 1 or more megabytes")


def check_target(out: Path, overwrite: bool) -> None:
    """Before anything is computed: an artifact is replaced when asked, anything else never."""
    if not out.exists():
        return
    if not overwrite:
        raise FileExistsError(f"{out} exists; choose another --out, or --overwrite it")
    if not (out / MANIFEST).is_file():
        raise FileExistsError(f"{out} exists and is not an artifact; choose another --out")
