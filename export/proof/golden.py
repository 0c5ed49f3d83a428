"""What a step must give: float64 eager is the truth, and what float32 may be off it is the yardstick.

That is the most of three: eager float32's own distance; that of eager with its inputs moved by one rounding, some times
over, because over a flat image all roundings are the same few and eager's own may happen to be lucky; and that of the
float64 step with every activation that rounding may push across a kink on the other side of it (`kinks`).  Examples are
independent of each other (GroupNorm), so we draw more than we need and keep those that stay clearest of kinks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from export.proof.golden_images import kind_of
from export.proof.kinks import AcrossKinks, clearance, in_precision, neighbour_of, roundings_of
from ondevice.contract.golden_step import GoldenStep
from ondevice.contract.step_signature import EXAMPLES, LOSS, Arrays, ArraySpec
from ondevice.contract.vocabulary import Parameters, StepSpec
from ondevice.model.extractors import build_extractor, load_state
from ondevice.model.noise import STEPS, WithNoise
from ondevice.model.train_step import TrainStep, step_outputs

CANDIDATES_PER_EXAMPLE = 4
FEATURE_ROWS = 16
"""Of a table that the extractor reads, while features are chosen."""
YARDSTICKS = 16
"""Networks a rounding away, whose distances from the truth are the yardstick: where large numbers cancel, as before a norm
over a flat picture, a few of them are lucky together, and a right runtime would miss it."""
EXAMPLES_AT_ONCE = 4
"""Float64 activations are large; examples are independent, so references are computed in pieces and added."""


def draw_features(step: TrainStep, count: int, seed: int) -> Arrays:
    """Features of `count` examples: of several of each kind, the one that stays clearest of kinks.  `step` is in float64."""
    random = np.random.default_rng(seed)
    specs = step.signature.features
    read = draw_read_tables(step, random)
    chosen: list[tuple[npt.NDArray[Any], ...]] = []
    for position in range(count):
        candidates = [
            tuple(draw_feature(spec, position, random) for spec in specs)
            for _ in range(CANDIDATES_PER_EXAMPLE)
        ]
        together = [np.stack(values) for values in zip(*candidates, strict=True)]
        seen = [in_rows(spec, values, FEATURE_ROWS) for spec, values in zip(specs, together, strict=True)]
        chosen.append(candidates[int(np.argmax(clearance(step.extractor, [*seen, *read])))])
    return {
        spec.name: np.stack(values) for spec, values in zip(specs, zip(*chosen, strict=True), strict=True)
    }


def draw_feature(spec: ArraySpec, position: int, random: np.random.Generator) -> npt.NDArray[Any]:
    """One example's feature: a picture where it looks like one, numbers of its range, or noise."""
    shape = spec.sizes({EXAMPLES: 1})[1:]
    if spec.dtype == "uint8" and len(shape) == 3:
        channels, height, width = shape
        return kind_of(position)(random, (channels, height, width))
    if spec.dtype == "float32":
        return random.standard_normal(shape, np.float32)
    # Positions among rows whose number is not known yet: `expected_step` takes them modulo what it draws.
    below = spec.below or (1 << 20 if spec.positions_in else 2)
    numbers = random.integers(0, below, shape).astype(spec.dtype)
    if shape and position % 2:
        # As a text that is shorter than the others.
        numbers[..., shape[-1] - shape[-1] // 3 :] = spec.padding
    return numbers


def draw_noise(spec: ArraySpec, examples: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """As a client draws it: multiples of 2^-24."""
    return random.integers(0, 1 << 24, spec.sizes({EXAMPLES: examples})).astype(np.float32) / np.float32(
        STEPS
    )


def draw_read_tables(step: TrainStep, random: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Rows of the tables that the extractor reads."""
    tables = [spec for spec in step.signature.embedded if spec.role == "table"]
    return [_draw_input(spec, {}, FEATURE_ROWS, random) for spec in tables]


def in_rows(spec: ArraySpec, values: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """Drawn positions as positions among so many rows, the last of several left out: it is padding."""
    return values if spec.positions_in is None else values % max(1, rows - (rows > 2))


def expected_step(
    step: TrainStep, features: Arrays, rows: int, seed: int, yardsticks: int = YARDSTICKS
) -> GoldenStep:
    """A step over `rows` random rows of every table with its expected outputs.  `step` is in float64 and left as it was.

    The last of several rows is excluded, as padding is, and the examples weigh differently, so that a runtime which
    ignores side arrays or `example_weight` cannot pass.
    """
    random = np.random.default_rng([seed, rows])
    inputs = draw_inputs(step, features, rows, random)
    exact = outputs_of(step, inputs)
    distance = dict.fromkeys(exact, 0.0)
    for found in _rounded(step, inputs, yardsticks, random):
        for name, value in found.items():
            away = float(torch.linalg.vector_norm(value.double() - exact[name]))
            # One that is no number stays that, for the artifact to be refused by.
            distance[name] = away if math.isnan(away) else max(distance[name], away)
    return GoldenStep(
        inputs=inputs,
        loss=float(exact[LOSS]),
        gradients={name: exact[name].float().numpy() for name in step.signature.trained},
        eager_distance={name: distance[name] for name in (*step.signature.trained, LOSS)},
    )


def _rounded(
    step: TrainStep, inputs: Arrays, yardsticks: int, random: np.random.Generator
) -> Iterator[dict[str, Tensor]]:
    """What float32 may give, one after the other: the gradients of a wide output layer are too large to keep them all."""
    yield outputs_of(float32_copy(step), inputs)
    yield outputs_of(step, inputs, across_kinks=True)
    for _ in range(yardsticks):
        yield outputs_of(TrainStep(step.spec, neighbour_of(step.extractor, random)), inputs)


def draw_inputs(step: TrainStep, features: Arrays, rows: int, random: np.random.Generator) -> Arrays:
    """The signature's data for the examples of `features`, over so many random rows of every table."""
    return {spec.name: _draw_input(spec, features, rows, random) for spec in step.signature.data}


def _draw_input(
    spec: ArraySpec, features: Arrays, rows: int, random: np.random.Generator
) -> npt.NDArray[Any]:
    """One input of the step for the examples of `features`; the last of several rows is padding."""
    examples = len(next(iter(features.values()), ()))
    shape = spec.sizes({size: examples if size == EXAMPLES else rows for size in spec.symbols})
    drawn: npt.NDArray[Any]
    if spec.role == "feature":
        drawn = in_rows(spec, features[spec.name], rows)
    elif spec.role == "table":
        drawn = 0.1 * random.standard_normal(shape, np.float32)
    elif spec.role == "side":
        drawn = random.uniform(0, 3, shape).astype(np.float32)
        if rows > 2:
            drawn[-1] = spec.padding
    elif spec.role == "noise":
        drawn = draw_noise(spec, examples, random)
    elif spec.role == "example_weight":
        drawn = random.uniform(0.5, 1, shape).astype(np.float32)
        drawn /= drawn.sum()
    elif spec.positions_in is not None:
        drawn = random.integers(0, max(1, rows - (rows > 2)), shape)
    else:
        drawn = random.integers(0, spec.below or 2, shape).astype(spec.dtype)
    return drawn


def build_step(spec: StepSpec, weights: Parameters) -> TrainStep:
    """The training step in float32 with these weights; every tensor of the extractor is given."""
    extractor = build_extractor(spec)
    load_state(extractor, weights, f"the weights of {spec.architecture}")
    return TrainStep(spec, extractor)


def float64_copy(step: TrainStep) -> TrainStep:
    """The same step in double precision."""
    return _copy(step, torch.float64)


def float32_copy(step: TrainStep) -> TrainStep:
    """The same step in single precision."""
    return _copy(step, torch.float32)


def _copy(step: TrainStep, dtype: torch.dtype) -> TrainStep:
    return TrainStep(step.spec, copy.deepcopy(step.extractor).to(dtype))


def outputs_of(step: TrainStep, inputs: Arrays, across_kinks: bool = False) -> dict[str, Tensor]:
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
            taken = [
                inputs[spec.name] if spec.role == "table" else inputs[spec.name][piece]
                for spec in (*step.signature.embedded, *step.signature.noise)
            ]
            rounding = AcrossKinks(roundings_of(WithNoise(step.extractor), taken))
        with rounding:  # kinks are the extractor's: what comes after it has none that numbers come near
            embeddings = step.embeddings(data)
        loss = step.loss(embeddings, data)
        outputs = step_outputs(loss, [*step.trainable_tensors(), *tables])
        totals = [a + b for a, b in zip(totals, outputs, strict=True)] if totals else outputs
    return dict(zip(names, totals, strict=True))
