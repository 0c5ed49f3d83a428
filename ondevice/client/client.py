"""A client of the federation: it asks for rows, trains the slice it gets, and answers with the difference.

The simulated client, the client in a worker process and the one on a phone hold this same conversation and exchange the
same wire bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ondevice.backends import Backend
from ondevice.client.local_training import LocalTask, epoch_batches, train_locally
from ondevice.client.memory import ClientMemory, NoMemory
from ondevice.client.questions import WireQuestions, expected_slice
from ondevice.client.samplers import SAMPLERS, SamplingView
from ondevice.client.samplers.sampling import numbers_of
from ondevice.client.targets import check_targets
from ondevice.client.transforms import TransformView, remember, transformed
from ondevice.client.weightings import WEIGHTINGS
from ondevice.contract import wire
from ondevice.contract.choice import chosen
from ondevice.contract.lazy_features import in_round
from ondevice.contract.link import Ask
from ondevice.contract.step_signature import StepSignature
from ondevice.contract.vocabulary import TARGETS, ExampleSet, RoundPlan, RowSample
from ondevice.contract.wire import Envelope


class Client:
    """Holds what never leaves the device: the examples, the private seed, and what it remembers of other rounds."""

    def __init__(
        self,
        client_id: int,
        examples: ExampleSet,
        private_seed: int,
        open_backend: Callable[[], Backend],
        memory: ClientMemory | None = None,
    ) -> None:
        self.client_id = client_id
        self._examples = examples
        self._private_seed = private_seed
        self._open_backend = open_backend
        """Asked for once there is a slice to train: a device that only asks needs no runtime."""
        self._memory = memory or NoMemory()

    def converse(self, plan: RoundPlan, ask: Ask) -> bytes:
        """Lines 5-11 of Algorithm 1.  Everything random is a function of (seed, round), so it can be held again."""
        envelope = Envelope(plan.round_index, self.client_id)
        # What the plan names and this client lacks is said at once, not after it has trained.
        weighting = chosen(WEIGHTINGS, plan.weighting, "weighting")
        sampler = chosen(SAMPLERS, plan.sampler, "sampler")
        remembers = remember(plan.transforms)
        memory = dict(self._memory.recall(plan.round_index)) if remembers else {}
        examples = in_round(self._examples, self._private_seed, plan.round_index)
        positions = weighting.examples(plan, examples.labels, self._private_seed)
        task = LocalTask(plan, examples, positions, weighting, self._private_seed)
        # Before anything is asked for: images that lie in files are decoded while the server makes the slice.
        batches = epoch_batches(task)
        # Line 5: draw N_k; S_k = P_k + N_k.
        labels = examples.labels[positions]
        questions = WireQuestions(envelope, plan, ask, self._open_backend, examples, positions)
        numbers = numbers_of(examples, positions)
        sample = sampler.draw(SamplingView(plan, labels, self._private_seed, numbers, questions))
        # Lines 6-7: ask for the rows of S_k; be given φ, unless the sampler had need of it, and W_S.
        dense = questions.dense
        answer = ask(wire.request_to_bytes(envelope, sample.ids, "request" if dense is None else "rows"))
        backend = self._open_backend()
        check_task(backend.signature, examples, sample, plan)
        expected = expected_slice(backend, plan)
        if dense is None:
            model_slice = wire.slice_from_bytes(answer, envelope, sample.ids, expected)
        else:
            rows = wire.slice_from_bytes(answer, envelope, sample.ids, replace(expected, dense={}))
            model_slice = replace(rows, dense=dense)
        # Lines 8-11: train, answer with the difference.
        update = train_locally(backend, task, batches, sample, model_slice)
        view = TransformView(plan.round_index, self._private_seed, memory)
        message = wire.update_to_bytes(
            envelope, update, transformed(wire.weights_of(update), plan.transforms, view)
        )
        if remembers:
            self._memory.keep(plan.round_index, view.memory)
        return message


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
    for spec in signature.of_role("label"):
        if spec.name == TARGETS:
            check_targets(spec, examples, sample)
    for spec in signature.features:
        feature = examples.features[spec.name]
        if feature.dtype != spec.dtype or feature.shape[1:] != spec.shape[1:]:
            raise ValueError(
                f"{spec.name} are {feature.dtype} {list(feature.shape)}; the step takes {spec.describe()}: "
                "export for that shape"
            )
