"""Local training: exact micro-batches, no dropped examples, plain SGD underneath."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.federations.tiny_federation import TinyFederation, tiny_plan

from ondevice.backends.eager import EagerBackend
from ondevice.client.client import Client
from ondevice.client.local_training import LocalTask, epoch_batches, train_locally
from ondevice.client.questions import expected_slice
from ondevice.client.samplers import Sampler, SamplingView
from ondevice.client.samplers.all_rows import AllRows
from ondevice.client.samplers.uniform_negatives import UniformNegatives
from ondevice.client.weightings.uniform import Uniform
from ondevice.contract import wire
from ondevice.contract.vocabulary import COLUMNS, ClientUpdate, ExampleSet, LocalTraining, RoundPlan, StepSpec
from ondevice.contract.wire import Envelope
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep


def task_of(examples: ExampleSet, plan: RoundPlan, seed: int) -> LocalTask:
    return LocalTask(plan, examples, np.arange(len(examples)), Uniform(), seed)


def trained(tiny: TinyFederation, task: LocalTask, sampler: Sampler) -> ClientUpdate:
    view = SamplingView(task.plan, task.examples.labels, task.private_seed)
    sample = sampler.draw(view)
    return train_locally(tiny.backend, task, epoch_batches(task), sample, tiny.state.slice_model(sample.ids))


def train(
    tiny: TinyFederation, training: LocalTraining, micro_batch: int | None = None, seed: int = 5
) -> ClientUpdate:
    tiny.backend.micro_batch = micro_batch
    task = task_of(tiny.clients[0], tiny_plan(2, 4, training), seed)
    return trained(tiny, task, UniformNegatives(4))


def assert_same_update(first: ClientUpdate, second: ClientUpdate, tolerance: float) -> None:
    pairs = [(first.tables[COLUMNS].values, second.tables[COLUMNS].values)]
    pairs += [(first.dense[name], second.dense[name]) for name in first.dense]
    for one, other in pairs:
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(one)
    assert first.mean_loss == pytest.approx(second.mean_loss, rel=tolerance)


@pytest.mark.parametrize("micro_batch", [1, 3, 5])
def test_micro_batches_change_nothing(tiny: TinyFederation, micro_batch: int) -> None:
    training = LocalTraining(epochs=2, batch_size=5, learning_rate=0.05, weight_decay=1e-3, momentum=0.5)
    assert_same_update(train(tiny, training), train(tiny, training, micro_batch), 2e-5)


def test_one_client_with_every_class_is_plain_torch_sgd(tiny: TinyFederation) -> None:
    """All the data, full width: the federation's update is what torch.optim.SGD does."""
    training = LocalTraining(epochs=2, batch_size=4, learning_rate=0.05, weight_decay=1e-3, momentum=0.9)
    examples = tiny.clients[1]
    task = task_of(examples, tiny_plan(training=training), 9)
    update = trained(tiny, task, AllRows())

    extractor = build_extractor(tiny.spec)
    extractor.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in tiny.initial.items()})
    columns = torch.nn.Parameter(torch.from_numpy(tiny.weights.copy()))
    optimizer = torch.optim.SGD([*extractor.parameters(), columns], lr=0.05, momentum=0.9, weight_decay=1e-3)
    for batch in epoch_batches(task):
        images = torch.from_numpy(examples.features["images"][batch])
        features = torch.nn.functional.normalize(extractor(images))
        logits = 20 * features @ torch.nn.functional.normalize(columns).t()
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(examples.labels[batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for name, value in extractor.state_dict().items():
        expected = value.numpy() - tiny.initial[name]
        assert np.linalg.norm(update.dense[name] - expected) <= 1e-4 * np.linalg.norm(expected), name
    expected = columns.detach().numpy() - tiny.weights
    assert np.linalg.norm(update.tables[COLUMNS].values - expected) <= 1e-4 * np.linalg.norm(expected)


def test_every_example_of_a_partial_last_batch_is_trained() -> None:
    examples = ExampleSet({}, np.zeros(11, np.int64))
    plan = tiny_plan(3, training=LocalTraining(epochs=3, batch_size=4))
    batches = list(epoch_batches(task_of(examples, plan, 1)))
    assert [len(batch) for batch in batches] == [4, 4, 3] * 3
    for epoch in range(3):
        assert sorted(np.concatenate(batches[3 * epoch : 3 * epoch + 3])) == list(range(11))
    assert not np.array_equal(batches[0], batches[3])


def test_momentum_lasts_for_the_whole_local_training(tiny: TinyFederation) -> None:
    """Rebuilding the optimizer every batch would silently make momentum 0."""
    with_momentum = train(tiny, LocalTraining(batch_size=3, learning_rate=0.05, momentum=0.9))
    without = train(tiny, LocalTraining(batch_size=3, learning_rate=0.05))
    lengths = [np.linalg.norm(update.tables[COLUMNS].values) for update in (with_momentum, without)]
    assert lengths[0] > 1.5 * lengths[1]


def test_local_training_leaves_the_servers_arrays_alone(tiny: TinyFederation) -> None:
    before = {name: value.copy() for name, value in tiny.state.dense.items()}
    train(tiny, LocalTraining(batch_size=3, learning_rate=0.5))
    for name, value in before.items():
        assert np.array_equal(value, tiny.state.dense[name])


@pytest.mark.parametrize(
    ("scope", "learns"), [("last-two", {"embedding.weight", "embedding.bias"}), ("head", set())]
)
def test_what_is_frozen_gets_no_gradient(tiny: TinyFederation, scope: str, learns: set[str]) -> None:
    spec = StepSpec(tiny.spec.architecture, tiny.spec.embedding_dim, tiny.spec.image_shape, train=scope)
    backend = EagerBackend(spec, tiny.initial)
    assert set(backend.signature.dense_shapes) == learns
    assert not any(
        parameter.requires_grad
        for name, parameter in TrainStep(spec, build_extractor(spec)).extractor.named_parameters()
        if name not in learns
    )


def test_every_draw_and_order_is_a_function_of_seed_and_round(tiny: TinyFederation) -> None:
    """A conversation can be held again from its start, with the same bytes at its end."""
    plan = tiny_plan(2, training=LocalTraining(epochs=2, batch_size=4))
    messages = []
    for seed in (5, 5, 6):
        client = Client(0, tiny.clients[0], seed, lambda: tiny.backend)
        messages.append(client.converse(plan, lambda question: answered(tiny, plan, question)))
    assert messages[0] == messages[1] != messages[2]


def answered(tiny: TinyFederation, plan: RoundPlan, question: bytes) -> bytes:
    envelope = Envelope(plan.round_index, 0)
    ids = wire.request_from_bytes(question, envelope, plan.table_sizes)
    return wire.slice_to_bytes(envelope, tiny.state.slice_model(ids))


def test_a_table_of_which_the_plan_says_nothing_is_named(tiny: TinyFederation) -> None:
    plan = replace(tiny_plan(), table_sizes={"words": 5})
    with pytest.raises(ValueError, match="the step has a table 'columns', of which the plan says nothing"):
        expected_slice(tiny.backend, plan)
