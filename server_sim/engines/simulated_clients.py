"""The population's clients, ready to converse in this process: data, private seed and a backend."""

from __future__ import annotations

from ondevice.backends import Backend
from ondevice.client.client import Client
from ondevice.contract.portable_random import PortableRandom
from server_sim.data.population import Population
from server_sim.engines.client_memories import ClientMemories


def private_seed_in_run(population: Population, client_id: int, run_seed: int) -> int:
    """A client's secret in one run: its own, stirred with the chance that makes one run differ from the next."""
    return PortableRandom(population.private_seed(client_id), run_seed).next()


class SimulatedClients:
    """Opens clients by id."""

    def __init__(
        self,
        population: Population,
        backend: Backend,
        run_seed: int,
        memories: ClientMemories | None = None,
    ) -> None:
        self._population = population
        self._backend = backend
        self._run_seed = run_seed
        self._memories = memories

    def __call__(self, client_id: int) -> Client:
        private_seed = private_seed_in_run(self._population, client_id, self._run_seed)
        examples = self._population.client_examples(client_id)
        memory = None if self._memories is None else self._memories.of(client_id)
        return Client(client_id, examples, private_seed, lambda: self._backend, memory)
