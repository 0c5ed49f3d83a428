"""What a step must give: float64 eager is the truth, and what float32 may be off it is the yardstick.

That is the most of three: eager float32's own distance; that of eager with its inputs moved by one rounding, some times
over, because over a flat image all roundings are the same few and eager's own may happen to be lucky; and that of the
float64 step with every activation that rounding may push across a kink on the other side of it (`kinks`).  Examples are
independent of each other (GroupNorm), so we draw more than we need and keep those that stay clearest of kinks.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from export.proof.golden_images import kind_of
from export.proof.kinks import AcrossKinks, clearance, roundings_of
from ondevice.backends import Batch
from ondevice.contract.golden_step import GoldenStep
from ondevice.contract.vocabulary import EXCLUDED, FloatArray, Parameters, StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep, loss_and_gradients

CANDIDATES_PER_EXAMPLE = 4
NEIGHBOURS = 4
"""Eager steps from inputs that differ by a rounding."""
EXAMPLES_AT_ONCE = 4
"""Float64 activations are large; examples are independent, so references are computed in pieces and added."""


def draw_images(step: TrainStep, count: int, seed: int) -> FloatArray:
    """[count, C, H, W]: of several images of each kind, the one that stays clearest of kinks.  `step` is in float64."""
    random = np.random.default_rng(seed)
    chosen = []
    for position in range(count):
        draw = kind_of(position)
        candidates = np.stack([draw(random, step.spec.image_shape) for _ in range(CANDIDATES_PER_EXAMPLE)])
        chosen.append(candidates[np.argmax(clearance(step.extractor, candidates))])
    return np.stack(chosen)


def expected_step(step: TrainStep, images: FloatArray, width: int, seed: int) -> GoldenStep:
    """A step over `width` random columns with its expected outputs.  `step` is in float64 and left as it was.

    The last of several columns is excluded, as padding is, and the examples weigh differently, so that a runtime which
    ignores `adjust` or `example_weight` cannot pass.
    """
    random = np.random.default_rng([seed, width])
    columns = 0.1 * random.standard_normal((width, step.spec.column_dim), np.float32)
    adjust = random.uniform(0, 3, width).astype(np.float32)
    if width > 2:
        adjust[-1] = EXCLUDED
    last_label = max(1, width - (width > 2))
    weight = random.uniform(0.5, 1, len(images)).astype(np.float32)
    batch = Batch(images, random.integers(0, last_label, len(images)), weight / weight.sum())
    exact_loss, exact = _outputs(step, columns, adjust, batch)
    rounded = [
        _outputs(float32_copy(step), columns, adjust, batch),
        _outputs(step, columns, adjust, batch, across_kinks=True),
        *(_outputs(_neighbour(step, random), columns, adjust, batch) for _ in range(NEIGHBOURS)),
    ]
    distance = {
        name: max(float(torch.linalg.vector_norm(found[name].double() - exact[name])) for _, found in rounded)
        for name in exact
    }
    return GoldenStep(
        columns=columns,
        adjust=adjust,
        batch=batch,
        loss=exact_loss,
        gradients={name: gradient.float().numpy() for name, gradient in exact.items()},
        eager_distance={**distance, "loss": max(abs(loss - exact_loss) for loss, _ in rounded)},
    )


def build_step(spec: StepSpec, weights: Parameters) -> TrainStep:
    """The training step in float32 with these weights; every tensor of the extractor is given."""
    extractor = build_extractor(spec)
    extractor.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    return TrainStep(spec, extractor)


def float64_copy(step: TrainStep) -> TrainStep:
    """The same step in double precision."""
    return _copy(step, torch.float64)


def float32_copy(step: TrainStep) -> TrainStep:
    """The same step in single precision."""
    return _copy(step, torch.float32)


def _copy(step: TrainStep, dtype: torch.dtype) -> TrainStep:
    return TrainStep(step.spec, copy.deepcopy(step.extractor).to(dtype))


def _neighbour(step: TrainStep, random: np.random.Generator) -> TrainStep:
    """In single precision, with every weight replaced by the next number above or below it."""
    neighbour = float32_copy(step)
    for tensor in neighbour.extractor.parameters():
        direction = torch.from_numpy(
            random.choice(np.array([-np.inf, np.inf], np.float32), tuple(tensor.shape))
        )
        tensor.data = torch.nextafter(tensor.data, direction)
    return neighbour


def _outputs(
    step: TrainStep, columns: FloatArray, adjust: FloatArray, batch: Batch, across_kinks: bool = False
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by name in the step's own precision, added up over pieces of the batch."""
    dtype = step.extractor.get_parameter("embedding.weight").dtype
    leaf = torch.from_numpy(columns).to(dtype).requires_grad_()
    total_loss = 0.0
    totals: list[Tensor] = []
    for start in range(0, len(batch.labels), EXAMPLES_AT_ONCE):
        piece = slice(start, start + EXAMPLES_AT_ONCE)
        rounding: AbstractContextManager[object] = nullcontext()
        if across_kinks:
            rounding = AcrossKinks(roundings_of(step.extractor, batch.images[piece]))
        with rounding:
            loss = step(
                leaf,
                torch.from_numpy(adjust).to(dtype),
                torch.from_numpy(batch.images[piece]).to(dtype),
                torch.from_numpy(batch.labels[piece]),
                torch.from_numpy(batch.example_weight[piece]).to(dtype),
            )
        loss, extractor_gradients, columns_gradient = loss_and_gradients(loss, step.trainable_tensors(), leaf)
        total_loss += loss.item()
        gradients = [*extractor_gradients, columns_gradient]
        totals = [a + b for a, b in zip(totals, gradients, strict=True)] if totals else gradients
    return total_loss, dict(zip([*step.trainable, "columns"], totals, strict=True))
