"""The Centralized reference: the same model, full softmax and plain SGD on shuffled batches of everybody's examples.

It takes as many SGD steps as the federation's clients take together ("an equivalent number of model updates", A.2): one
*round* of it walks over as many examples as the clients of a federated round do in all of their epochs.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from ondevice.client.local_training import LocalSgd, micro_batches
from ondevice.client.noise import BatchNoise
from ondevice.contract.lazy_features import announced, in_round
from ondevice.contract.step_signature import LOSS, gradient_of
from ondevice.contract.vocabulary import IntArray, RowSample
from server_sim.schemes.scheme import RoundContext, Scheme


class Centralized(Scheme):
    label: ClassVar[str] = "Centralized"
    name: Literal["centralized"] = "centralized"

    def sampler(self) -> None:
        """There are no clients."""

    def play(self, context: RoundContext) -> dict[str, Any]:
        return {"mean_loss": train_centrally(context)}


def train_centrally(context: RoundContext) -> float:
    """One round's worth of SGD, whose result the state adopts; returns the mean loss.  Velocity starts anew every round."""
    experiment, state, backend = context.experiment, context.state, context.backend
    training = experiment.client.local_training
    examples = in_round(context.population.train, experiment.seed, state.round_index)
    sizes = [context.population.num_examples(client_id) for client_id in context.population.client_ids]
    examples_per_round = round(experiment.server.clients_per_round * training.epochs * float(np.mean(sizes)))
    weights = {name: np.array(value) for name, value in state.dense.items()}
    weights |= {name: table.read_all(state.round_index) for name, table in state.tables.items()}
    # Every row is there: nothing to correct.
    every_row = RowSample({table: np.arange(len(weights[table])) for table in state.tables}, {})
    sides = {
        spec.name: np.zeros(len(weights[str(spec.shape[0]).removeprefix("rows:")]), np.float32)
        for spec in backend.signature.of_role("side")
    }
    optimizer = LocalSgd(training, [weights[name] for name in backend.signature.trained])
    order = shuffled_positions(
        state.round_index * examples_per_round, examples_per_round, len(examples), experiment.seed
    )
    total_loss = 0.0
    starts = range(0, len(order), training.batch_size)
    batches = announced(examples, (order[start : start + training.batch_size] for start in starts))
    for number, batch in enumerate(batches):
        mean = np.full(len(batch), np.float32(1 / len(batch)))
        noise = BatchNoise(backend.signature, experiment.seed, state.round_index, number)
        for piece in micro_batches(backend.signature, examples, batch, mean, every_row, backend.micro_batch):
            drawn = noise.next(len(piece[backend.signature.weight.name]))
            result = backend.step({**weights, **sides, **piece, **drawn})
            optimizer.accumulate([result[gradient_of(name)] for name in backend.signature.trained])
            total_loss += float(result[LOSS]) * len(batch)
        optimizer.apply()
    state.adopt(weights)
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
