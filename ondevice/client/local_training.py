"""E local epochs of SGD on a client's own examples (Algorithm 1, lines 8-11), on any backend.

Batches are split into micro-batches whose gradients add up: GroupNorm and the loss treat every example by itself and carry
a weight of 1/B, so the sum *is* the batch's gradient and memory depends on the micro-batch alone.  The last batch of an
epoch may be smaller; it is trained as the mean over what it holds, never dropped.

SGD keeps one momentum buffer for the whole local training:  v <- μ v + (g + λ θ),  θ <- θ − η v.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondevice.backends import Backend, Batch
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import (
    ClassSample,
    ClientUpdate,
    Columns,
    ExampleSet,
    FloatArray,
    IntArray,
    LocalTraining,
    ModelSlice,
    RoundPlan,
)


def train_locally(
    backend: Backend,
    examples: ExampleSet,
    sample: ClassSample,
    adjust: FloatArray,
    plan: RoundPlan,
    model_slice: ModelSlice,
    private_seed: int,
) -> ClientUpdate:
    """Train a copy of the slice and return how far it moved."""
    extractor = {name: np.array(model_slice.extractor[name]) for name in backend.parameter_shapes}
    columns = np.array(model_slice.columns.weights)
    optimizer = LocalSgd(plan.local_training, [*extractor.values(), columns])
    labels = np.searchsorted(sample.class_ids, examples.labels)
    total_loss = 0.0
    for batch in epoch_batches(labels, plan, private_seed):
        for micro_batch in micro_batches(examples, labels, batch, backend.micro_batch):
            result = backend.step(extractor, columns, adjust, micro_batch)
            optimizer.accumulate([*result.extractor_gradients.values(), result.columns_gradient])
            total_loss += result.loss * len(batch)
        optimizer.apply()
    return ClientUpdate(
        extractor_delta={name: extractor[name] - model_slice.extractor[name] for name in extractor},
        columns_delta=Columns(model_slice.columns.class_ids, columns - model_slice.columns.weights),
        num_examples=len(examples),
        mean_loss=total_loss / (plan.local_training.epochs * len(examples)),
    )


def epoch_batches(labels: IntArray, plan: RoundPlan, private_seed: int) -> Iterator[IntArray]:
    """Positions of the examples of every batch, every epoch in an order of its own."""
    training = plan.local_training
    for epoch in range(training.epochs):
        order = PortableRandom(private_seed, plan.round_index, Purpose.FIRST_EPOCH + epoch).permutation(
            len(labels)
        )
        for start in range(0, len(order), training.batch_size):
            yield order[start : start + training.batch_size]


def micro_batches(
    examples: ExampleSet, labels: IntArray, batch: IntArray, micro_batch: int | None
) -> Iterator[Batch]:
    """The batch in pieces that a step can take, each example weighing 1/B."""
    size = micro_batch or len(batch)
    weight = np.float32(1 / len(batch))
    for start in range(0, len(batch), size):
        chosen = batch[start : start + size]
        yield Batch(normalize_images(examples.images[chosen]), labels[chosen], np.full(len(chosen), weight))


def normalize_images(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> FloatArray:
    """Pixels 0..255 -> about −1..1.  The same two float32 operations as on a device."""
    return images.astype(np.float32) * np.float32(1 / 127.5) - np.float32(1)


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
