"""A client of the federation: it asks for classes, and trains the slice it gets.  Both are narrated here.

The simulated client, the client in a worker process and the one on a phone go through these same two steps and exchange
the same wire bytes.
"""

from __future__ import annotations

from ondevice.backends import Backend
from ondevice.client.class_sampling import logit_adjustment, sample_classes
from ondevice.client.local_training import train_locally
from ondevice.contract import wire
from ondevice.contract.vocabulary import ExampleSet, RoundPlan
from ondevice.contract.wire import Envelope, Expected, Precision


class Client:
    """Holds what never leaves the device: the examples and the private seed."""

    def __init__(
        self, client_id: int, examples: ExampleSet, private_seed: int, precision: Precision = "fp32"
    ) -> None:
        self.client_id = client_id
        self._examples = examples
        self._private_seed = private_seed
        self._precision = precision

    def request(self, plan: RoundPlan) -> bytes:
        """Lines 5-6 of Algorithm 1: draw N_k, ask for the columns of S_k = P_k + N_k."""
        sample = sample_classes(self._examples.labels, plan, self._private_seed)
        return wire.request_to_bytes(self._envelope(plan), sample.class_ids)

    def train(self, plan: RoundPlan, slice_message: bytes, backend: Backend) -> bytes:
        """Lines 7-11: train the slice locally, answer with the difference.  S_k is drawn again, not remembered."""
        sample = sample_classes(self._examples.labels, plan, self._private_seed)
        expected = Expected(plan.num_classes, backend.spec.column_dim, backend.parameter_shapes)
        model_slice = wire.slice_from_bytes(slice_message, self._envelope(plan), sample.class_ids, expected)
        adjust = logit_adjustment(sample, plan)
        update = train_locally(backend, self._examples, sample, adjust, plan, model_slice, self._private_seed)
        return wire.update_to_bytes(self._envelope(plan), update, self._precision)

    def _envelope(self, plan: RoundPlan) -> Envelope:
        return Envelope(plan.round_index, self.client_id)
