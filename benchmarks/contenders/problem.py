"""The work that all contenders of a round do: the same clients, images, batches, first weights and learning rate.

Sizes are those of glyphs-2028: clients of 130 images in some 90 of 2,028 classes, the extractor of the glyphs experiments.
The images are noise; the time does not depend on what they show.

    FedSS         a client trains φ and the rows of S_k = P_k + 80 negatives
    FullSoftmax   a client trains φ and all of W
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ondevice.backends.eager import initial_parameters
from ondevice.client.local_training import LocalTask, epoch_batches
from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.client.weightings.uniform import Uniform
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.vocabulary import (
    COLUMNS,
    IMAGES,
    ExampleSet,
    FloatArray,
    IntArray,
    LocalTraining,
    RoundPlan,
    StepSpec,
)
from ondevice.model.extractors import build_extractor
from ondevice.model.objectives.sampled_softmax import class_logits

CLASSES, DIM, CLIENTS, IMAGES_EACH = 2028, 64, 16, 130
BATCH, LEARNING_RATE = 32, 0.05
SPEC = StepSpec("three_convolutions", DIM, (1, 32, 32))
FEDSS, FULL_SOFTMAX = "FedSS", "FullSoftmax"
_SAMPLERS = {FEDSS: Choice("uniform_negatives", {"num_negatives": 80}), FULL_SOFTMAX: Choice("all_rows")}


@dataclass(frozen=True)
class ClientData:
    """One client's work: its examples in the order of its epoch, and the rows that it trains."""

    images: Tensor
    labels: Tensor
    """Positions in `ids`."""
    ids: IntArray
    adjust: Tensor

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.images.split(BATCH), self.labels.split(BATCH), strict=True))


class Problem:
    """Everything is a function of the scheme's name."""

    def __init__(self, scheme: str) -> None:
        rng = np.random.default_rng(0)
        self.dense = initial_parameters(SPEC, 0)
        self.columns = (rng.standard_normal((CLASSES, DIM)) / 80).astype(np.float32)
        self.examples = []
        for _ in range(CLIENTS):
            held = rng.choice(CLASSES, 90, replace=False)
            images = rng.integers(0, 256, (IMAGES_EACH, 1, 32, 32), np.uint8)
            self.examples.append(ExampleSet({IMAGES: images}, rng.choice(held, IMAGES_EACH)))
        training = LocalTraining(batch_size=BATCH, learning_rate=LEARNING_RATE)
        self.plan = RoundPlan(
            0, {COLUMNS: CLASSES}, _SAMPLERS[scheme], Choice("uniform"), local_training=training
        )

    def client_data(self) -> list[ClientData]:
        """What `Client` works out for itself in every round, for those who do not have it."""
        return [self._data_of(client_id) for client_id in range(CLIENTS)]

    def _data_of(self, client_id: int) -> ClientData:
        examples = self.examples[client_id]
        view = SamplingView(self.plan, examples.labels, client_id)
        sample = chosen(SAMPLERS, self.plan.sampler, "sampler").draw(view)
        task = LocalTask(self.plan, examples, np.arange(IMAGES_EACH), Uniform(), client_id)
        order = np.concatenate(list(epoch_batches(task)))
        labels = np.searchsorted(sample.ids[COLUMNS], examples.labels[order])
        return ClientData(
            torch.from_numpy(examples.features[IMAGES][order]),
            torch.from_numpy(labels),
            sample.ids[COLUMNS],
            torch.from_numpy(sample.sides["adjust"]),
        )


class Network(nn.Module):
    """φ and the whole of W in one module, as frameworks without sub-models have them."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.extractor = build_extractor(SPEC)
        self.extractor.load_state_dict(
            {name: torch.from_numpy(value) for name, value in problem.dense.items()}
        )
        self.columns = nn.Parameter(torch.from_numpy(problem.columns.copy()))

    def loss(self, images: Tensor, labels: Tensor, ids: Tensor | None, adjust: Tensor) -> Tensor:
        """`ids` are the rows of W that take part; None for all of them."""
        columns = self.columns if ids is None else self.columns[ids]
        logits = class_logits(self.extractor(images), columns, "cosine")
        return functional.cross_entropy(logits if ids is None else logits + adjust, labels)


def write_outcome(path: Path, dense: Mapping[str, FloatArray], columns: FloatArray) -> None:
    """The model after the first round."""
    arrays: dict[str, Any] = {"columns": columns, **dense}
    np.savez(path, **arrays)


def network_outcome(path: Path, network: Network) -> None:
    dense = {name: value.detach().numpy() for name, value in network.extractor.named_parameters()}
    write_outcome(path, dense, network.columns.detach().numpy())


def check_same_work(paths: Sequence[Path], problem: Problem) -> None:
    """All contenders moved the model to the same place, to a thousandth of the way."""
    first = {**problem.dense, "columns": problem.columns}
    reference = np.load(paths[0])
    for path in paths[1:]:
        outcome = np.load(path)
        for name, value in first.items():
            way = np.linalg.norm(reference[name] - value)
            apart = np.linalg.norm(outcome[name] - reference[name])
            assert apart < 1e-3 * way, f"{path.stem} is {apart / way:.1e} of the way off in {name}"
