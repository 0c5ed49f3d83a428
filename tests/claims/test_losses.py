"""The papers' claims about the losses (FedSS sections 3.1-3.4, 4.5), against slow and obvious numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from helpers.federations.tiny_federation import tiny_plan

from ondevice.client.samplers import Sampler, SamplingView
from ondevice.client.samplers.all_rows import AllRows
from ondevice.client.samplers.positives import Positives
from ondevice.client.samplers.uniform_negatives import UniformNegatives
from ondevice.contract.safetensors_file import Array
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, FloatArray, IntArray, LogitKind
from ondevice.model.objectives.sampled_softmax import class_logits, sampled_softmax_losses, unit_rows

NUM_CLASSES = 60
LABELS = np.array([3, 17, 3, 42])
SAMPLERS = (UniformNegatives(6), UniformNegatives(6, exclude_positives=True), Positives(), AllRows())


def draw(sampler: Sampler, seed: int) -> tuple[IntArray, FloatArray]:
    """The rows of S_k, and what is added to their logits."""
    view = SamplingView(tiny_plan(num_classes=NUM_CLASSES), LABELS, seed)
    sample = sampler.draw(view)
    return sample.ids[COLUMNS], sample.sides["adjust"]


def loss_and_gradients(
    features: Array, columns: Array, adjust: Array, labels: IntArray, kind: LogitKind = "cosine"
) -> tuple[float, torch.Tensor, torch.Tensor]:
    features_leaf = torch.from_numpy(features).double().requires_grad_()
    columns_leaf = torch.from_numpy(columns).double().requires_grad_()
    weight = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64)
    logits = class_logits(features_leaf, columns_leaf, kind)
    losses = sampled_softmax_losses(logits, torch.from_numpy(adjust).double(), torch.from_numpy(labels))
    loss = (weight * losses).sum()
    loss.backward()
    assert features_leaf.grad is not None
    assert columns_leaf.grad is not None
    return loss.item(), features_leaf.grad, columns_leaf.grad


def sampled_loss(sampler: Sampler, seed: int = 0) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Loss, gradient of the features, and gradient of all n columns (0 where a class was not sampled)."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((len(LABELS), 8), np.float32)
    columns = rng.standard_normal((NUM_CLASSES, 8), np.float32)
    ids, adjust = draw(sampler, seed)
    loss, feature_gradient, slice_gradient = loss_and_gradients(
        features, columns[ids], adjust, np.searchsorted(ids, LABELS)
    )
    column_gradient = torch.zeros(NUM_CLASSES, 8, dtype=torch.float64)
    column_gradient[torch.from_numpy(ids)] = slice_gradient
    return loss, feature_gradient, column_gradient


def test_with_every_class_sampled_fedss_is_full_softmax() -> None:
    everything = NUM_CLASSES - len(np.unique(LABELS))
    fedss = sampled_loss(UniformNegatives(everything))
    full = sampled_loss(AllRows())
    assert fedss[0] == pytest.approx(full[0], rel=1e-12)
    torch.testing.assert_close(fedss[1], full[1], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(fedss[2], full[2], rtol=1e-12, atol=1e-15)


def test_full_softmax_is_the_cross_entropy_of_torch() -> None:
    rng = np.random.default_rng(0)
    features, columns = (
        rng.standard_normal((4, 8), np.float32),
        rng.standard_normal((NUM_CLASSES, 8), np.float32),
    )
    f = features / np.linalg.norm(features, axis=1, keepdims=True)
    w = columns / np.linalg.norm(columns, axis=1, keepdims=True)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(20 * f @ w.T), torch.from_numpy(LABELS)
    ).item()
    assert sampled_loss(AllRows())[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["cosine", "dot"])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradients_are_those_of_the_papers_equations(
    sampler: Sampler, kind: LogitKind, seed: int
) -> None:
    """Against `reference_loss`, in plain Python numbers; its gradients are central differences."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((len(LABELS), 5))
    columns = rng.standard_normal((NUM_CLASSES, 5 + (kind == "dot")))
    ids, adjust = draw(sampler, seed)
    loss, feature_gradient, slice_gradient = loss_and_gradients(
        features, columns[ids], adjust, np.searchsorted(ids, LABELS), kind
    )
    negatives = [int(c) for c in ids if c not in set(LABELS.tolist())]

    def reference() -> float:
        return reference_loss(features, columns, negatives, sampler, kind)

    assert loss == pytest.approx(reference(), rel=1e-6)  # adjust is rounded to float32
    np.testing.assert_allclose(feature_gradient, central_differences(reference, features), atol=2e-6)
    expected = central_differences(reference, columns)
    np.testing.assert_allclose(slice_gradient, expected[ids], atol=2e-6)
    assert not np.delete(expected, ids, axis=0).any()


def reference_loss(
    features: Array, columns: Array, negatives: Sequence[int], sampler: Sampler, kind: LogitKind
) -> float:
    """Equations 2, 5, 7 and 8 as sums over sets of classes, one number at a time."""
    positives = sorted(set(LABELS.tolist()))
    others = [c for c in range(NUM_CLASSES) if c not in positives]
    total = 0.0
    for feature, label in zip(features.tolist(), LABELS.tolist(), strict=True):

        def logit(c: int, feature: list[float] = feature) -> float:
            column = columns[c].tolist()
            product = math.fsum(f * w for f, w in zip(feature, column, strict=False))
            if kind == "dot":
                return product + float(column[-1])
            lengths = math.hypot(*feature) * math.hypot(*column)
            return 20 * product / lengths

        if isinstance(sampler, AllRows):
            counted = dict.fromkeys(range(NUM_CLASSES), 1.0)
        elif isinstance(sampler, Positives):
            counted = dict.fromkeys(positives, 1.0)
        else:
            assert isinstance(sampler, UniformNegatives)
            # A negative stands for as many classes as there are others for each one drawn.
            share = len(others) / len(negatives)
            counted = {label: 1.0} if sampler.exclude_positives else dict.fromkeys(positives, 1.0)
            counted |= dict.fromkeys(negatives, share)
        total += math.log(math.fsum(times * math.exp(logit(c)) for c, times in counted.items())) - logit(
            label
        )
    return total / len(LABELS)


def central_differences(loss: Callable[[], float], values: Array, step: float = 1e-6) -> Array:
    """dL/dv for every entry, changed in place and put back."""
    gradient = np.zeros_like(values)
    for index in np.ndindex(*values.shape):
        before = values[index]
        values[index] = before + step
        above = loss()
        values[index] = before - step
        gradient[index] = (above - loss()) / (2 * step)
        values[index] = before
    return gradient


def test_a_positives_only_client_with_one_class_learns_nothing() -> None:
    rng = np.random.default_rng(0)
    features, columns = rng.standard_normal((2, 8), np.float32), rng.standard_normal((1, 8), np.float32)
    loss, feature_gradient, column_gradient = loss_and_gradients(
        features, columns, np.zeros(1, np.float32), np.array([0, 0])
    )
    assert loss == 0
    assert not feature_gradient.any()
    assert not column_gradient.any()


def test_a_row_that_is_all_but_zero_is_not_thrown_away_by_its_gradient() -> None:
    """The gradient of a unit row goes with 1 / length; below a length of 0.001 it must grow no further."""
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(8)
    direction /= np.linalg.norm(direction)
    features = rng.standard_normal((2, 8))

    def largest_gradient(length: float) -> float:
        columns = np.stack([length * direction, rng.standard_normal(8)])
        _, _, gradient = loss_and_gradients(features, columns, np.zeros(2), np.array([0, 1]))
        return float(gradient[0].abs().max())

    at_the_bound = largest_gradient(1e-3)
    assert largest_gradient(0.1) < 0.02 * at_the_bound
    for length in (1e-4, 1e-6, 0.0):
        assert largest_gradient(length) < 3 * at_the_bound


def test_ordinary_rows_are_at_length_1_to_the_last_digit() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 8), np.float32))
    expected = rows * torch.rsqrt((rows * rows).sum(1, keepdim=True))
    assert torch.equal(unit_rows(rows), expected)


def test_the_estimate_of_the_partition_sum_is_unbiased() -> None:
    """Σ over the sampled negatives of exp(o_j) / expected count has the mean of Σ over all of them (Eq. 3)."""
    rng = np.random.default_rng(3)
    mass = np.exp(rng.standard_normal(NUM_CLASSES))
    others = np.setdiff1d(np.arange(NUM_CLASSES), LABELS)
    for num_negatives in (2, 5, 20):
        estimates = []
        for seed in range(3000):
            ids, adjust = draw(UniformNegatives(num_negatives), seed)
            corrected = mass[ids] * np.exp(adjust.astype(np.float64))
            estimates.append(corrected[~np.isin(ids, LABELS)].sum())
        error = abs(np.mean(estimates) - mass[others].sum())
        assert error < 4 * np.std(estimates) / np.sqrt(len(estimates))


def test_the_gradient_error_shrinks_with_more_negatives() -> None:
    """Figure 8's trend.  (The sampled gradient is not unbiased; it approaches the full one.)"""
    _, _, full = sampled_loss(AllRows())
    errors = []
    for num_negatives in (2, 5, 20, 57):
        mean = torch.stack(
            [sampled_loss(UniformNegatives(num_negatives), seed)[2] for seed in range(200)]
        ).mean(0)
        errors.append(((mean - full).norm() / full.norm()).item())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-12


def test_dot_logits_carry_their_bias_in_the_last_entry() -> None:
    features, columns = torch.randn(3, 4), torch.randn(5, 5)
    expected = features @ columns[:, :4].t() + columns[:, 4]
    torch.testing.assert_close(class_logits(features, columns, "dot"), expected)


def test_padding_classes_and_examples_changes_neither_loss_nor_gradients() -> None:
    rng = np.random.default_rng(0)
    features, columns = rng.standard_normal((4, 8), np.float32), rng.standard_normal((9, 8), np.float32)
    labels = np.array([0, 3, 8, 2])
    adjust = rng.standard_normal(9).astype(np.float32)

    def run(
        features: FloatArray, columns: FloatArray, adjust: FloatArray, labels: IntArray, weight: FloatArray
    ) -> list[torch.Tensor]:
        leaves = [torch.from_numpy(features).requires_grad_(), torch.from_numpy(columns).requires_grad_()]
        logits = class_logits(leaves[0], leaves[1], "cosine")
        losses = sampled_softmax_losses(logits, torch.from_numpy(adjust), torch.from_numpy(labels))
        loss = (torch.from_numpy(weight) * losses).sum()
        return [loss, *torch.autograd.grad(loss, leaves)]

    loss, features_gradient, columns_gradient = run(
        features, columns, adjust, labels, np.full(4, 0.25, np.float32)
    )
    padded_loss, padded_features, padded_columns = run(
        np.concatenate([features, np.ones((3, 8), np.float32)]),
        np.concatenate([columns, np.ones((5, 8), np.float32)]),
        np.concatenate([adjust, np.full(5, EXCLUDED)]),
        np.concatenate([labels, np.zeros(3, np.int64)]),
        np.array([0.25] * 4 + [0] * 3, np.float32),
    )
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_features[:4], features_gradient)
    torch.testing.assert_close(padded_columns[:9], columns_gradient)
    assert not padded_features[4:].any()
    assert not padded_columns[9:].any()
