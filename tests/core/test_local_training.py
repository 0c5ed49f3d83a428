"""Local training: exact micro-batches, no dropped examples, plain SGD underneath."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny_federation import TinyFederation
from ondevice.client.class_sampling import logit_adjustment, sample_classes

from ondevice.backends.eager import EagerBackend
from ondevice.client.local_training import epoch_batches, normalize_images, train_locally
from ondevice.contract.vocabulary import ClientUpdate, LocalTraining, RoundPlan, StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep


def train(
    tiny: TinyFederation, training: LocalTraining, micro_batch: int | None = None, seed: int = 5
) -> ClientUpdate:
    plan = RoundPlan(2, tiny.num_classes, 4, local_training=training)
    sample = sample_classes(tiny.clients[0].labels, plan, seed)
    tiny.backend.micro_batch = micro_batch
    model_slice = tiny.state.slice_model(sample.class_ids)
    return train_locally(
        tiny.backend, tiny.clients[0], sample, logit_adjustment(sample, plan), plan, model_slice, seed
    )


def assert_same_update(first: ClientUpdate, second: ClientUpdate, tolerance: float) -> None:
    pairs = [(first.columns_delta.weights, second.columns_delta.weights)]
    pairs += [(first.extractor_delta[name], second.extractor_delta[name]) for name in first.extractor_delta]
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
    plan = RoundPlan(0, tiny.num_classes, method="full_softmax", local_training=training)
    examples = tiny.clients[1]
    sample = sample_classes(examples.labels, plan, 9)
    model_slice = tiny.state.slice_model(sample.class_ids)
    update = train_locally(
        tiny.backend, examples, sample, logit_adjustment(sample, plan), plan, model_slice, 9
    )

    extractor = build_extractor(tiny.spec)
    extractor.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in tiny.initial.items()})
    columns = torch.nn.Parameter(torch.from_numpy(tiny.state.columns.class_weights.copy()))
    optimizer = torch.optim.SGD([*extractor.parameters(), columns], lr=0.05, momentum=0.9, weight_decay=1e-3)
    for batch in epoch_batches(examples.labels, plan, 9):
        features = torch.nn.functional.normalize(
            extractor(torch.from_numpy(normalize_images(examples.images[batch])))
        )
        logits = 20 * features @ torch.nn.functional.normalize(columns).t()
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(examples.labels[batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for name, value in extractor.state_dict().items():
        expected = value.numpy() - tiny.initial[name]
        assert np.linalg.norm(update.extractor_delta[name] - expected) <= 1e-4 * np.linalg.norm(expected), (
            name
        )
    expected = columns.detach().numpy() - tiny.state.columns.class_weights
    assert np.linalg.norm(update.columns_delta.weights - expected) <= 1e-4 * np.linalg.norm(expected)


def test_every_example_of_a_partial_last_batch_is_trained() -> None:
    labels = np.zeros(11, np.int64)
    plan = RoundPlan(3, 20, 2, local_training=LocalTraining(epochs=3, batch_size=4))
    batches = list(epoch_batches(labels, plan, private_seed=1))
    assert [len(batch) for batch in batches] == [4, 4, 3] * 3
    for epoch in range(3):
        assert sorted(np.concatenate(batches[3 * epoch : 3 * epoch + 3])) == list(range(11))
    assert not np.array_equal(batches[0], batches[3])


def test_momentum_lasts_for_the_whole_local_training(tiny: TinyFederation) -> None:
    """Rebuilding the optimizer every batch would silently make momentum 0."""
    with_momentum = train(tiny, LocalTraining(batch_size=3, learning_rate=0.05, momentum=0.9))
    without = train(tiny, LocalTraining(batch_size=3, learning_rate=0.05))
    assert np.linalg.norm(with_momentum.columns_delta.weights) > 1.5 * np.linalg.norm(
        without.columns_delta.weights
    )


def test_local_training_leaves_the_servers_arrays_alone(tiny: TinyFederation) -> None:
    before = {name: value.copy() for name, value in tiny.state.extractor.items()}
    train(tiny, LocalTraining(batch_size=3, learning_rate=0.5))
    for name, value in before.items():
        assert np.array_equal(value, tiny.state.extractor[name])


@pytest.mark.parametrize(
    ("scope", "learns"), [("last-two", {"embedding.weight", "embedding.bias"}), ("head", set())]
)
def test_what_is_frozen_gets_no_gradient(tiny: TinyFederation, scope: str, learns: set[str]) -> None:
    spec = StepSpec(tiny.spec.architecture, tiny.spec.embedding_dim, tiny.spec.image_shape, train=scope)  # type: ignore[arg-type]
    backend = EagerBackend(spec, tiny.initial)
    assert set(backend.parameter_shapes) == learns
    assert not any(
        parameter.requires_grad
        for name, parameter in TrainStep(spec, build_extractor(spec)).extractor.named_parameters()
        if name not in learns
    )


def test_a_client_without_examples_says_so() -> None:
    with pytest.raises(ValueError, match="holds no examples"):
        sample_classes(np.zeros(0, np.int64), RoundPlan(0, 5, 1), 0)
