"""What a step must give: float64 eager is the truth, and what float32 may be off it is the yardstick.

That is the most of three: eager float32's own distance; that of eager with its inputs moved by one rounding, some times
over, because over a flat image all roundings are the same few and eager's own may happen to be lucky; and that of the
float64 step with every activation that rounding may push across a kink on the other side of it (`kinks`).  Examples are
independent of each other (GroupNorm), so we draw more than we need and keep those that stay clearest of kinks.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from export.proof.golden_images import kind_of
from export.proof.kinks import AcrossKinks, clearance, in_precision, roundings_of
from ondevice.contract.golden_step import GoldenStep
from ondevice.contract.step_signature import EXAMPLES, LOSS, Arrays, ArraySpec
from ondevice.contract.vocabulary import Parameters, StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep, step_outputs

CANDIDATES_PER_EXAMPLE = 4
NEIGHBOURS = 4
"""Eager steps from inputs that differ by a rounding."""
EXAMPLES_AT_ONCE = 4
"""Float64 activations are large; examples are independent, so references are computed in pieces and added."""


def draw_features(step: TrainStep, count: int, seed: int) -> Arrays:
    """Features of `count` examples: of several of each kind, the one that stays clearest of kinks.  `step` is in float64."""
    random = np.random.default_rng(seed)
    specs = step.signature.features
    chosen: list[tuple[npt.NDArray[Any], ...]] = []
    for position in range(count):
        candidates = [
            tuple(draw_feature(spec, position, random) for spec in specs)
            for _ in range(CANDIDATES_PER_EXAMPLE)
        ]
        together = [np.stack(values) for values in zip(*candidates, strict=True)]
        chosen.append(candidates[int(np.argmax(clearance(step.extractor, together)))])
    return {
        spec.name: np.stack(values) for spec, values in zip(specs, zip(*chosen, strict=True), strict=True)
    }


def draw_feature(spec: ArraySpec, position: int, random: np.random.Generator) -> npt.NDArray[Any]:
    """One example's feature: a picture where it looks like one, noise where it does not."""
    shape = spec.sizes({EXAMPLES: 1})[1:]
    if spec.dtype == "uint8" and len(shape) == 3:
        channels, height, width = shape
        return kind_of(position)(random, (channels, height, width))
    if spec.dtype == "float32":
        return random.standard_normal(shape, np.float32)
    return random.integers(0, 2, shape).astype(spec.dtype)


def expected_step(step: TrainStep, features: Arrays, rows: int, seed: int) -> GoldenStep:
    """A step over `rows` random rows of every table with its expected outputs.  `step` is in float64 and left as it was.

    The last of several rows is excluded, as padding is, and the examples weigh differently, so that a runtime which
    ignores side arrays or `example_weight` cannot pass.
    """
    random = np.random.default_rng([seed, rows])
    inputs = {spec.name: _draw_input(spec, features, rows, random) for spec in step.signature.data}
    exact = _outputs(step, inputs)
    rounded = [
        _outputs(float32_copy(step), inputs),
        _outputs(step, inputs, across_kinks=True),
        *(_outputs(_neighbour(step, random), inputs) for _ in range(NEIGHBOURS)),
    ]
    distance = {
        name: max(float(torch.linalg.vector_norm(found[name].double() - exact[name])) for found in rounded)
        for name in exact
    }
    return GoldenStep(
        inputs=inputs,
        loss=float(exact[LOSS]),
        gradients={name: exact[name].float().numpy() for name in step.signature.trained},
        eager_distance={name: distance[name] for name in (*step.signature.trained, LOSS)},
    )


def _draw_input(
    spec: ArraySpec, features: Arrays, rows: int, random: np.random.Generator
) -> npt.NDArray[Any]:
    """One input of the step for the examples of `features`; the last of several rows is padding."""
    examples = len(next(iter(features.values())))
    shape = spec.sizes({size: examples if size == EXAMPLES else rows for size in spec.symbols})
    drawn: npt.NDArray[Any]
    if spec.role == "feature":
        drawn = features[spec.name]
    elif spec.role == "table":
        drawn = 0.1 * random.standard_normal(shape, np.float32)
    elif spec.role == "side":
        drawn = random.uniform(0, 3, shape).astype(np.float32)
        if rows > 2:
            drawn[-1] = spec.padding
    elif spec.role == "example_weight":
        drawn = random.uniform(0.5, 1, shape).astype(np.float32)
        drawn /= drawn.sum()
    elif spec.positions_in is not None:
        drawn = random.integers(0, max(1, rows - (rows > 2)), shape)
    else:
        drawn = random.uniform(0, 1, shape).astype(spec.dtype)
    return drawn


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


def _outputs(step: TrainStep, inputs: Arrays, across_kinks: bool = False) -> dict[str, Tensor]:
    """Gradients by name, and the loss, in the step's own precision, added up over pieces of the batch."""
    dtype = next(step.extractor.parameters()).dtype
    whole = {spec.name: in_precision(inputs[spec.name], dtype) for spec in step.signature.data}
    tables = [whole[table].requires_grad_() for table in step.signature.table_dims]
    names = (LOSS, *step.signature.trained)
    totals: list[Tensor] = []
    for start in range(0, len(inputs[step.signature.weight.name]), EXAMPLES_AT_ONCE):
        piece = slice(start, start + EXAMPLES_AT_ONCE)
        data = {
            spec.name: whole[spec.name][piece] if spec.shape[:1] == (EXAMPLES,) else whole[spec.name]
            for spec in step.signature.data
        }
        rounding: AbstractContextManager[object] = nullcontext()
        if across_kinks:
            features = [inputs[spec.name][piece] for spec in step.signature.features]
            rounding = AcrossKinks(roundings_of(step.extractor, features))
        with rounding:  # kinks are the extractor's: what comes after it has none that numbers come near
            embeddings = step.extractor(*(data[spec.name] for spec in step.signature.features))
        loss = step.loss(embeddings, data)
        outputs = step_outputs(loss, [*step.trainable_tensors(), *tables])
        totals = [a + b for a, b in zip(totals, outputs, strict=True)] if totals else outputs
    return dict(zip(names, totals, strict=True))
