"""The population's clients, ready to train in this process: data, private seed and a backend behind `Conversing`."""

from __future__ import annotations

from collections.abc import Callable

from ondevice.backends import Backend
from ondevice.client.client import Client
from ondevice.contract.portable_random import PortableRandom
from ondevice.contract.vocabulary import RoundPlan
from ondevice.contract.wire import Precision
from server_sim.data.population import Population


class SimulatedClient:
    """A client of the population on the backend of this process."""

    def __init__(self, client: Client, backend: Backend) -> None:
        self._client = client
        self._backend = backend

    def request(self, plan: RoundPlan) -> bytes:
        return self._client.request(plan)

    def train(self, plan: RoundPlan, slice_message: bytes) -> bytes:
        return self._client.train(plan, slice_message, self._backend)


def private_seed_in_run(population: Population, client_id: int, run_seed: int) -> int:
    """A client's secret in one run: its own, stirred with the chance that makes one run differ from the next."""
    return PortableRandom(population.private_seed(client_id), run_seed).next()


class SimulatedClients:
    """Opens clients by id."""

    def __init__(self, population: Population, backend: Backend, precision: Precision, run_seed: int) -> None:
        self._population = population
        self._backend = backend
        self._precision = precision
        self._run_seed = run_seed

    def __call__(self, client_id: int) -> SimulatedClient:
        private_seed = private_seed_in_run(self._population, client_id, self._run_seed)
        examples = self._population.client_examples(client_id)
        return SimulatedClient(Client(client_id, examples, private_seed, self._precision), self._backend)


OpenClients = Callable[[], Callable[[int], SimulatedClient]]
"""Makes the clients in the process that will run them: a worker calls it once, at its start."""
