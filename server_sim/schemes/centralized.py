"""The Centralized reference: the same model, full softmax and plain SGD on shuffled batches of everybody's examples.

It takes as many SGD steps as the federation's clients take together ("an equivalent number of model updates", A.2): one
*round* of it walks over as many examples as the clients of a federated round hold.
"""

from __future__ import annotations

import numpy as np

from ondevice.backends import Backend
from ondevice.client.local_training import LocalSgd, micro_batches
from ondevice.contract.vocabulary import ExampleSet, IntArray, LocalTraining
from server_sim.server.state import ServerState


def train_centrally(
    state: ServerState,
    backend: Backend,
    examples: ExampleSet,
    training: LocalTraining,
    examples_per_round: int,
    seed: int,
) -> float:
    """One round's worth of SGD, whose result the state adopts; returns the mean loss.  Velocity starts anew every round."""
    extractor = {name: np.array(value) for name, value in state.extractor.items()}
    columns = np.array(state.columns.class_weights)
    adjust = np.zeros(len(columns), np.float32)  # every class is there: nothing to correct
    optimizer = LocalSgd(training, [*extractor.values(), columns])
    first = state.round_index * examples_per_round
    order = shuffled_positions(first, examples_per_round, len(examples), seed)
    total_loss = 0.0
    for start in range(0, len(order), training.batch_size):
        batch = order[start : start + training.batch_size]
        for micro_batch in micro_batches(examples, examples.labels, batch, backend.micro_batch):
            result = backend.step(extractor, columns, adjust, micro_batch)
            optimizer.accumulate([*result.extractor_gradients.values(), result.columns_gradient])
            total_loss += result.loss * len(batch)
        optimizer.apply()
    state.adopt(extractor, columns)
    return total_loss / examples_per_round


def shuffled_positions(start: int, size: int, num_examples: int, seed: int) -> IntArray:
    """Places start .. start + size − 1 of an endless sequence of epochs, each shuffled in its own way."""
    positions = np.arange(start, start + size)
    epochs = positions // num_examples
    chosen = np.empty(size, np.int64)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        order = np.random.default_rng([seed, int(epoch)]).permutation(num_examples)
        chosen[inside] = order[positions[inside] - epoch * num_examples]
    return chosen
