"""Pretraining an extractor centrally on data outside the task, as the paper starts from an ImageNet checkpoint (A.2).

Full softmax with scaled cosine logits and Adam.  Only the extractor is kept: the classes it learnt on are not those of the
task.  (Plain SGD from scratch does not get off the ground in these few steps; from a pretrained extractor it does.)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from ondevice.contract import safetensors_file
from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.extractor import Extractor
from ondevice.model.objectives.sampled_softmax import class_logits
from ondevice.model.one_thread import one_thread
from server_sim.data.population import Population

BATCH_SIZE = 32
LEARNING_RATE = 2e-3

OnStep = Callable[[int, float], None]
"""Shown the number of steps done and the loss."""


def pretrain(
    population: Population, spec: StepSpec, steps: int, seed: int, out: Path, on_step: OnStep
) -> None:
    """Train, and write the extractor to `out`."""
    with one_thread():  # batches of small images: a second thread costs more than it brings
        extractor = _trained(population, spec, steps, seed, on_step)
    tensors = {f"extractor.{name}": value.detach().numpy() for name, value in extractor.named_parameters()}
    safetensors_file.write_file(
        out, tensors, {"format": "fedss-pretrained-1", "architecture": spec.architecture}
    )


def _trained(population: Population, spec: StepSpec, steps: int, seed: int, on_step: OnStep) -> Extractor:
    extractor = build_extractor(spec, seed)
    rng = np.random.default_rng(seed)
    columns = rng.standard_normal((population.num_classes, spec.column_dim), np.float32)
    columns_leaf = torch.nn.Parameter(F.normalize(torch.from_numpy(columns)))
    parameters = [*extractor.parameters(), columns_leaf]
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    examples = population.train
    for step in range(steps):
        batch = rng.integers(0, len(examples), BATCH_SIZE)
        embeddings = extractor(
            *(torch.from_numpy(examples.features[feature.name][batch]) for feature in extractor.inputs)
        )
        logits = class_logits(embeddings, columns_leaf, spec.logits)
        loss = F.cross_entropy(logits, torch.from_numpy(examples.labels[batch]))
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        decay.step()
        on_step(step + 1, loss.item())
    return extractor
