"""The extractor that experiments start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedss.api.callbacks import Advance
from fedss.api.populations import open_population
from ondevice.contract.vocabulary import StepSpec
from server_sim.pretraining import pretrain as pretrain_centrally


@dataclass(frozen=True)
class Pretrained:
    """An extractor, and how far it came."""

    path: Path
    steps: int
    loss: float
    num_classes: int


def pretrain(
    population: str | Path = "glyphs-pretrain",
    *,
    out: str | Path,
    architecture: str = "three_convolutions",
    embedding_dim: int = 64,
    steps: int = 3000,
    seed: int = 0,
    cache: str | Path | None = None,
    on_data: Advance | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Pretrained:
    """Train an extractor centrally on data outside the task, as the paper starts from ImageNet.

    The file goes into an experiment as `model.pretrained`.  `on_step` hears of the steps done and the loss.
    """
    opened = open_population(population, cache=cache, on_progress=on_data)
    spec = StepSpec(architecture, embedding_dim, opened.image_shape)
    last = float("nan")

    def hear(done: int, loss: float) -> None:
        nonlocal last
        last = loss
        if on_step is not None:
            on_step(done, loss)

    pretrain_centrally(opened, spec, steps, seed, Path(out), hear)
    return Pretrained(Path(out), steps, last, opened.num_classes)
