"""A server with an index over its rows, and clients that look rows up before they ask: the same rounds over any link."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from android_harness.rounds.training_device import ClientData
from helpers.federations.conversation_case import NUM_CLASSES
from ondevice.backends.opening import Runtime, open_backend
from ondevice.client.client import Client
from ondevice.contract.artifact import Artifact
from ondevice.contract.link import Link
from ondevice.contract.vocabulary import COLUMNS, FloatArray, LocalTraining, RoundPlan
from server_sim.engines.in_process import InProcessLink
from server_sim.one_round import RoundReport, RoundRules, run_round
from server_sim.schemes.nearest import Nearest
from server_sim.server.aggregation import Aggregator
from server_sim.server.optimizers import FedAvg
from server_sim.server.state import ServerState


class NearestFederation:
    """At the weights of a small artifact, with made-up rows."""

    def __init__(self, artifact: Artifact, scheme: Nearest, client_data: Callable[[int], ClientData]) -> None:
        self._artifact, self._scheme, self._client_data = artifact, scheme, client_data
        self._dim = artifact.signature.table_dims[COLUMNS]
        initial = artifact.initial()
        dense = {name: initial[name].copy() for name in artifact.signature.dense_shapes}
        rows = np.random.default_rng(0).standard_normal((NUM_CLASSES, self._dim), np.float32)
        self.state = ServerState.fresh(FedAvg(), dense, {COLUMNS: rows})
        self.index = scheme.open_index(self.state)

    def play(self, link: Link, rounds: int = 1) -> RoundReport:
        """Clients 0 to 2."""
        rules = RoundRules(index=self.index)
        training = LocalTraining(batch_size=6, learning_rate=0.05)
        for number in range(self.state.round_index, self.state.round_index + rounds):
            plan = RoundPlan(
                number, {COLUMNS: NUM_CLASSES}, self._scheme.sampler(), self._scheme.weighting(), (), training
            )
            aggregator = Aggregator(
                self._artifact.signature.dense_shapes, {COLUMNS: (NUM_CLASSES, self._dim)}, "selected"
            )
            report = run_round(self.state, plan, [0, 1, 2], link, aggregator, rules)
            assert not report.dropped, report.dropped
        return report

    def simulated(self, runtime: Runtime = "executorch") -> InProcessLink:
        """Python's clients on the runtime of the device's."""
        backend = open_backend(self._artifact, runtime)

        def client(client_id: int) -> Client:
            data = self._client_data(client_id)
            return Client(client_id, data.examples, data.private_seed, lambda: backend)

        return InProcessLink(client)

    def weights(self) -> FloatArray:
        """All of them, one behind the other."""
        rows = self.state.rows(COLUMNS, np.arange(NUM_CLASSES)).values
        return np.concatenate([*(value.reshape(-1) for value in self.state.dense.values()), rows.reshape(-1)])
