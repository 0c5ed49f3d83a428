"""P_k, N_k, S_k: what is asked for, and what the request gives away."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny_federation import TinyFederation
from hypothesis import given
from hypothesis import strategies as st
from ondevice.client.class_sampling import draw_negatives, logit_adjustment, sample_classes

from ondevice.client.client import Client
from ondevice.contract import safetensors_file
from ondevice.contract.portable_random import PortableRandom
from ondevice.contract.vocabulary import EXCLUDED, ExampleSet, RoundPlan


def test_the_generator_is_splitmix64() -> None:
    """The reference sequence of Vigna's splitmix64.c for a state of 1234567."""
    random = PortableRandom(0)
    random._state = 1234567
    assert [random.next() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_draws_are_pinned_so_that_other_languages_can_match_them() -> None:
    random = PortableRandom(seed=2**63 + 5, round_index=7, purpose=1)
    assert [random.below(1000) for _ in range(6)] == PINNED_BELOW
    assert list(PortableRandom(3, 1).subset(5, 50)) == PINNED_SUBSET
    assert list(PortableRandom(3, 1).permutation(8)) == PINNED_PERMUTATION


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.integers(1, 300), st.data())
def test_a_sample_is_all_positives_and_distinct_others(
    seed: int, round_index: int, num_classes: int, data: st.DataObject
) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, num_classes - 1), min_size=1, max_size=40)), np.int64)
    num_negatives = data.draw(st.integers(0, num_classes))
    plan = RoundPlan(round_index, num_classes, num_negatives)
    sample = sample_classes(labels, plan, seed)
    positives = set(labels.tolist())
    assert set(sample.class_ids[sample.is_positive].tolist()) == positives
    assert len(sample.class_ids) == min(num_classes, len(positives) + num_negatives)
    assert sample.class_ids[0] >= 0
    assert sample.class_ids[-1] < num_classes
    again = sample_classes(labels, plan, seed)
    assert np.array_equal(sample.class_ids, again.class_ids)


def test_every_class_that_is_not_held_is_drawn_equally_often() -> None:
    positives = np.array([0, 3, 4, 9])
    counts = np.zeros(12)
    draws = 6000
    for seed in range(draws):
        counts[draw_negatives(positives, 2, 12, seed, 0)] += 1
    assert not counts[positives].any()
    others = np.delete(counts, positives)
    expected = draws * 2 / 8
    chi_square = ((others - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # 7 degrees of freedom: exceeded once in a thousand


def test_a_request_is_sorted_ids_and_nothing_else(tiny: TinyFederation) -> None:
    client = Client(3, tiny.clients[0], private_seed=1)
    plan = RoundPlan(5, tiny.num_classes, 4)
    tensors, metadata = safetensors_file.from_bytes(client.request(plan))
    assert list(tensors) == ["class_ids"]
    assert metadata == {"kind": "request", "version": "1", "round": "5", "client": "3"}
    class_ids = tensors["class_ids"]
    assert np.array_equal(class_ids, np.sort(class_ids))


def test_a_request_does_not_tell_positives_from_negatives(tiny: TinyFederation) -> None:
    """Another client, holding other classes, can send the very same bytes: they carry no trace of which is which."""
    plan = RoundPlan(0, tiny.num_classes, 4)
    labels = np.unique(tiny.clients[0].labels)
    sample = sample_classes(labels, plan, private_seed=1)
    other_labels = np.sort(np.concatenate([sample.class_ids[~sample.is_positive], labels])[: len(labels)])
    assert not np.array_equal(other_labels, labels)
    same_request = (
        seed
        for seed in range(100_000)
        if np.array_equal(sample_classes(other_labels, plan, seed).class_ids, sample.class_ids)
    )
    images = tiny.clients[0].images[: len(labels)]
    first = Client(0, ExampleSet(images, labels), private_seed=1).request(plan)
    second = Client(0, ExampleSet(images, other_labels), private_seed=next(same_request)).request(plan)
    assert first == second


def test_adjustments_are_zero_for_positives_and_when_everything_is_sampled() -> None:
    labels = np.array([1, 4])
    some = RoundPlan(0, 10, 4)
    sample = sample_classes(labels, some, 0)
    adjust = logit_adjustment(sample, some)
    assert not adjust[sample.is_positive].any()
    assert np.allclose(adjust[~sample.is_positive], np.log(8 / 4))
    everything = RoundPlan(0, 10, 8)
    assert not logit_adjustment(sample_classes(labels, everything, 0), everything).any()


def test_negatives_only_removes_the_other_positives() -> None:
    plan = RoundPlan(0, 10, 4, method="negatives_only")
    sample = sample_classes(np.array([1, 4]), plan, 0)
    assert np.array_equal(logit_adjustment(sample, plan) == EXCLUDED, sample.is_positive)


def test_positives_only_asks_for_its_own_classes_and_full_softmax_for_all() -> None:
    labels = np.array([7, 2, 2])
    assert list(sample_classes(labels, RoundPlan(0, 9, method="positives_only"), 0).class_ids) == [2, 7]
    assert list(sample_classes(labels, RoundPlan(0, 9, method="full_softmax"), 0).class_ids) == list(range(9))


def test_labels_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="labels reach from 3 to 12; expected 0 to 9"):
        sample_classes(np.array([3, 12]), RoundPlan(0, 10, 2), 0)


PINNED_BELOW = [564, 756, 240, 915, 453, 246]
PINNED_SUBSET = [4, 18, 27, 30, 40]
PINNED_PERMUTATION = [2, 6, 7, 1, 4, 3, 0, 5]
