"""pfl-research 0.6.0's simulation: its FederatedAveraging on its SimulatedBackend, in one process.

pfl has no sub-models, so all of W is trained and aggregated under both schemes; under FedSS a client computes with its rows.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.contenders.problem import (
    BATCH,
    CLIENTS,
    FULL_SOFTMAX,
    LEARNING_RATE,
    Network,
    Problem,
    network_outcome,
)
from benchmarks.contenders.turns import turns


class Measured(Network):
    """pfl evaluates the first round, whatever is asked for."""

    def metrics(self, *_: torch.Tensor) -> dict[str, object]:
        return {}


class OneTurnEach(TrainingProcessCallback):  # type: ignore[misc]
    """Waits for the next turn between two rounds, and ends with the turns."""

    def __init__(self, told: Iterator[int], outcome: Path) -> None:
        self._told, self._outcome = told, outcome

    def after_central_iteration(
        self, _: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if central_iteration == 0:
            network_outcome(self._outcome, model.pytorch_model)
        return next(self._told, None) is None, Metrics()


def main(scheme: str, outcome: Path) -> None:
    torch.set_num_threads(1)
    problem = Problem(scheme)
    clients = problem.client_data()

    def dataset(user: int) -> PyTorchTensorDataset:
        client = clients[user]
        ids = None if scheme == FULL_SOFTMAX else torch.from_numpy(client.ids)
        rows = {"ids": ids, "adjust": client.adjust}
        return PyTorchTensorDataset((client.images, client.labels), train_kwargs=rows)

    network = Measured(problem)
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, torch.optim.SGD, central)
    users = FederatedDataset(dataset, itertools.cycle(range(CLIENTS)).__next__)
    backend = SimulatedBackend(users, users, postprocessors=[WeightByUser()])
    rounds = NNAlgorithmParams(
        central_num_iterations=10**9,
        evaluation_frequency=10**9,
        train_cohort_size=CLIENTS,
        val_cohort_size=0,
    )
    training = NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE
    )
    told = turns()
    next(told)
    FederatedAveraging().run(
        rounds,
        backend,
        model,
        training,
        callbacks=[OneTurnEach(told, outcome)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
