"""A client of the federation: it asks for rows, trains the slice it gets, and answers with the difference.

The simulated client, the client in a worker process and the one on a phone hold this same conversation and exchange the
same wire bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from ondevice.backends import Backend
from ondevice.client.local_training import LocalTask, train_locally
from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.client.transforms import transformed, transforms_of
from ondevice.client.weightings import WEIGHTINGS
from ondevice.contract import wire
from ondevice.contract.choice import chosen
from ondevice.contract.link import Ask
from ondevice.contract.step_signature import StepSignature
from ondevice.contract.vocabulary import ExampleSet, RoundPlan, RowSample
from ondevice.contract.wire import Envelope, Expected


class Client:
    """Holds what never leaves the device: the examples and the private seed."""

    def __init__(
        self,
        client_id: int,
        examples: ExampleSet,
        private_seed: int,
        open_backend: Callable[[], Backend],
    ) -> None:
        self.client_id = client_id
        self._examples = examples
        self._private_seed = private_seed
        self._open_backend = open_backend
        """Asked for once there is a slice to train: a device that only asks needs no runtime."""

    def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
        """Lines 5-11 of Algorithm 1.  Everything random is a function of (seed, round), so it can be held again."""
        envelope = Envelope(plan.round_index, self.client_id)
        # What the plan names and this client lacks is said at once, not after it has trained.
        weighting = chosen(WEIGHTINGS, plan.weighting, "weighting")
        sampler = chosen(SAMPLERS, plan.sampler, "sampler")
        transforms_of(plan.transforms)
        positions = weighting.examples(plan, self._examples.labels, self._private_seed)
        # Line 5: draw N_k; S_k = P_k + N_k.
        labels = self._examples.labels[positions]
        sample = sampler.draw(SamplingView(plan, labels, self._private_seed, ask))
        # Lines 6-7: ask for the rows of S_k; be given φ and W_S.
        answer = ask(wire.request_to_bytes(envelope, sample.ids))
        backend = self._open_backend()
        check_task(backend.signature, self._examples, sample, plan)
        model_slice = wire.slice_from_bytes(answer, envelope, sample.ids, expected_slice(backend, plan))
        # Lines 8-11: train, answer with the difference.
        task = LocalTask(plan, self._examples, positions, weighting, self._private_seed)
        update = train_locally(backend, task, sample, model_slice)
        weights = transformed(wire.weights_of(update), plan.transforms)
        return wire.update_to_bytes(envelope, update, weights)


def check_task(signature: StepSignature, examples: ExampleSet, sample: RowSample, plan: RoundPlan) -> None:
    """Everything that the step takes is there: its features, rows of its tables, its side arrays."""
    known = {
        "feature": set(examples.features),
        "table": set(sample.ids),
        "side": {*sample.sides, *plan.sides},
    }
    for spec in signature.of_role("feature", "table", "side"):
        if spec.name not in known[spec.role]:
            given = ", ".join(sorted(known[spec.role])) or "none"
            raise ValueError(
                f"the step takes the {spec.role} {spec.name!r}; data, sampler and plan give {given}: "
                "export the step for this experiment"
            )


def expected_slice(backend: Backend, plan: RoundPlan) -> Expected:
    """What a slice must look like for this step."""
    signature = backend.signature
    for table in signature.table_dims:
        if table not in plan.table_sizes:
            raise ValueError(
                f"the step has a table {table!r}, of which the plan says nothing; export for this model"
            )
    return Expected(signature.dense_shapes, plan.table_sizes, signature.table_dims, plan.sides)
