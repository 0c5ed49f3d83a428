"""E local epochs of SGD on a client's own examples (Algorithm 1, lines 8-11), on any backend.

Batches are split into micro-batches whose gradients add up: the step treats every example by itself and weighs it, with
weights that add up to 1 over a batch, so the sum *is* the batch's gradient and memory depends on the micro-batch alone.  The
last batch of an epoch may be smaller; it is trained as the mean over what it holds, never dropped.

SGD keeps one momentum buffer for the whole local training:  v <- μ v + (g + λ θ),  θ <- θ − η v.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ondevice.backends import Backend
from ondevice.client.noise import BatchNoise
from ondevice.client.targets import targets_of
from ondevice.client.weightings import Weighting, WeightingView
from ondevice.contract.lazy_features import announced
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.step_signature import LOSS, Arrays, StepSignature, gradient_of
from ondevice.contract.vocabulary import (
    CLASSES,
    TARGETS,
    ClientUpdate,
    ExampleSet,
    FloatArray,
    IntArray,
    LocalTraining,
    ModelSlice,
    RoundPlan,
    Rows,
    RowSample,
)


@dataclass(frozen=True)
class LocalTask:
    """What one client trains on in one round."""

    plan: RoundPlan
    examples: ExampleSet
    positions: IntArray
    """Of the examples that take part, as the weighting chose them."""
    weighting: Weighting
    private_seed: int = field(repr=False)


def train_locally(
    backend: Backend,
    task: LocalTask,
    batches: Iterator[IntArray],
    sample: RowSample,
    model_slice: ModelSlice,
) -> ClientUpdate:
    """Train a copy of the slice on the batches of `epoch_batches` and return how far it moved."""
    signature = backend.signature
    weights = {name: np.array(model_slice.dense[name]) for name in signature.dense_shapes}
    weights |= {table: np.array(model_slice.tables[table].values) for table in signature.table_dims}
    sides = {**model_slice.sides, **sample.sides}
    inputs = {**weights, **{spec.name: sides[spec.name] for spec in signature.of_role("side")}}
    view = WeightingView(task.plan, task.examples.labels, sample.ids, model_slice.sides, task.private_seed)
    optimizer = LocalSgd(task.plan.local_training, list(weights.values()))
    total_loss = 0.0
    for number, batch in enumerate(batches):
        example_weight = task.weighting.weights(view, batch)
        noise = BatchNoise(signature, task.private_seed, task.plan.round_index, number)
        for examples in micro_batches(
            signature, task.examples, batch, example_weight, sample, backend.micro_batch
        ):
            drawn = noise.next(len(examples[signature.weight.name]))
            result = backend.step({**inputs, **examples, **drawn})
            optimizer.accumulate([result[gradient_of(name)] for name in weights])
            total_loss += float(result[LOSS]) * len(batch)
        optimizer.apply()
    return ClientUpdate(
        dense={name: weights[name] - model_slice.dense[name] for name in signature.dense_shapes},
        tables={
            table: Rows(sample.ids[table], weights[table] - model_slice.tables[table].values)
            for table in signature.table_dims
        },
        num_examples=len(task.positions),
        mean_loss=total_loss / (task.plan.local_training.epochs * len(task.positions)),
    )


def epoch_batches(task: LocalTask) -> Iterator[IntArray]:
    """Positions of the examples of every batch, every epoch in an order of its own.

    Features that are made when they are asked for hear of the first at once, and of the others ahead of their turn.
    """
    return announced(task.examples, _shuffled_batches(task))


def _shuffled_batches(task: LocalTask) -> Iterator[IntArray]:
    training = task.plan.local_training
    for epoch in range(training.epochs):
        random = PortableRandom(task.private_seed, task.plan.round_index, Purpose.FIRST_EPOCH + epoch)
        order = task.positions[random.permutation(len(task.positions))]
        for start in range(0, len(order), training.batch_size):
            yield order[start : start + training.batch_size]


def micro_batches(
    signature: StepSignature,
    examples: ExampleSet,
    batch: IntArray,
    example_weight: FloatArray,
    sample: RowSample,
    micro_batch: int | None,
) -> Iterator[Arrays]:
    """The batch in pieces that a step can take: features, labels and weights by their names in the signature."""
    size = micro_batch or len(batch)
    for start in range(0, len(batch), size):
        chosen = batch[start : start + size]
        piece: dict[str, np.ndarray] = {}
        for spec in signature.of_role("feature", "label"):
            if spec.name == TARGETS and sample.outputs is not None:
                piece[TARGETS] = targets_of(spec, examples.features[CLASSES][chosen], sample.outputs)
                continue
            values = (examples.labels if spec.role == "label" else examples.features[spec.name])[chosen]
            if spec.positions_in is not None:
                values = positions_of(values, sample.ids[spec.positions_in], spec.name)
            piece[spec.name] = values
        piece[signature.weight.name] = example_weight[start : start + size]
        yield piece


def positions_of(values: IntArray, ids: IntArray, what: str) -> IntArray:
    """Global ids become positions among the rows of the slice; one that is not there is refused by name."""
    positions = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
    if not np.array_equal(ids[positions], values):
        absent = values[ids[positions] != values].flat[0]
        raise ValueError(f"{what} hold {absent}, which is not among the {len(ids)} rows of the slice")
    return positions


class LocalSgd:
    """SGD with optional weight decay and momentum, in place on the given arrays."""

    def __init__(self, training: LocalTraining, parameters: list[FloatArray]) -> None:
        self._training = training
        self._parameters = parameters
        self._gradients: list[FloatArray] = []
        self._velocities: list[FloatArray] = []

    def accumulate(self, gradients: list[FloatArray]) -> None:
        """Add the gradients of one micro-batch."""
        if not self._gradients:
            self._gradients = gradients
            return
        for total, gradient in zip(self._gradients, gradients, strict=True):
            total += gradient

    def apply(self) -> None:
        """One step with the accumulated gradients."""
        rate = np.float32(self._training.learning_rate)
        decay = np.float32(self._training.weight_decay)
        momentum = np.float32(self._training.momentum)
        directions = self._gradients
        if decay:
            for direction, parameter in zip(directions, self._parameters, strict=True):
                direction += decay * parameter
        if momentum:
            if self._velocities:
                for velocity, direction in zip(self._velocities, directions, strict=True):
                    velocity *= momentum
                    velocity += direction
            else:
                self._velocities = [direction.copy() for direction in directions]
            directions = self._velocities
        for parameter, direction in zip(self._parameters, directions, strict=True):
            parameter -= rate * direction
        self._gradients = []
