"""P_k, N_k, S_k: what is asked for, and what the request gives away."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import numpy as np
import pytest
from helpers.federations.tiny_federation import TinyFederation, first_question, tiny_plan
from hypothesis import given
from hypothesis import strategies as st

from ondevice.client.client import Client
from ondevice.client.samplers import SAMPLERS, Sampler, SamplingView
from ondevice.client.samplers.all_rows import AllRows
from ondevice.client.samplers.positives import Positives
from ondevice.client.samplers.uniform_negatives import UniformNegatives, draw_negatives
from ondevice.contract import safetensors_file
from ondevice.contract.choice import Choice, chosen
from ondevice.contract.portable_random import PortableRandom, Purpose
from ondevice.contract.vocabulary import COLUMNS, EXCLUDED, ExampleSet, IntArray, RowSample


def draw(
    sampler: Sampler, labels: IntArray, num_classes: int, seed: int = 0, round_index: int = 0
) -> RowSample:
    plan = tiny_plan(round_index, num_classes=num_classes)
    # As texts of one word each: every word that is predicted is read too.
    return sampler.draw(SamplingView(plan, labels, seed, numbers=lambda _: labels))


def never_asked(question: bytes) -> bytes:
    raise AssertionError(f"a sampler that needs no exchange asked {len(question)} bytes")


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
    sample = draw(UniformNegatives(4), np.array([7, 30, 7]), 50, seed=3, round_index=1)
    assert list(sample.ids[COLUMNS]) == PINNED_SAMPLE


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.integers(1, 300), st.data())
def test_a_sample_is_all_positives_and_distinct_others(
    seed: int, round_index: int, num_classes: int, data: st.DataObject
) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, num_classes - 1), min_size=1, max_size=40)), np.int64)
    num_negatives = data.draw(st.integers(0, num_classes))
    sampler = UniformNegatives(num_negatives)
    sample = draw(sampler, labels, num_classes, seed, round_index)
    ids = sample.ids[COLUMNS]
    positives = set(labels.tolist())
    assert positives <= set(ids.tolist())
    assert len(ids) == min(num_classes, len(positives) + num_negatives)
    assert len(ids) == sampler.widest(len(positives), num_classes)
    assert ids[0] >= 0
    assert ids[-1] < num_classes
    again = draw(sampler, labels, num_classes, seed, round_index)
    assert np.array_equal(ids, again.ids[COLUMNS])
    assert np.array_equal(sample.sides["adjust"], again.sides["adjust"])


def test_every_class_that_is_not_held_is_drawn_equally_often() -> None:
    positives = np.array([0, 3, 4, 9])
    counts = np.zeros(12)
    draws = 6000
    for seed in range(draws):
        counts[draw_negatives(positives, 2, 12, PortableRandom(seed, 0, Purpose.NEGATIVES))] += 1
    assert not counts[positives].any()
    others = np.delete(counts, positives)
    expected = draws * 2 / 8
    chi_square = ((others - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # 7 degrees of freedom: exceeded once in a thousand


def test_a_request_is_sorted_ids_and_nothing_else(tiny: TinyFederation) -> None:
    client = Client(3, tiny.clients[0], 1, lambda: tiny.backend)
    tensors, metadata = safetensors_file.from_bytes(first_question(client, tiny_plan(5, 4)))
    assert list(tensors) == ["rows.columns"]
    assert metadata == {"kind": "request", "version": "2", "round": "5", "client": "3"}
    ids = tensors["rows.columns"]
    assert isinstance(ids, np.ndarray)
    assert np.array_equal(ids, np.sort(ids))


def test_a_request_does_not_tell_positives_from_negatives(tiny: TinyFederation) -> None:
    """Another client, holding other classes, can send the very same bytes: they carry no trace of which is which."""
    plan, sampler = tiny_plan(0, 4), UniformNegatives(4)
    labels = np.unique(tiny.clients[0].labels)
    ids = draw(sampler, labels, tiny.num_classes, seed=1).ids[COLUMNS]
    negatives = np.setdiff1d(ids, labels)
    other_labels = np.sort(np.concatenate([negatives, labels])[: len(labels)])
    assert not np.array_equal(other_labels, labels)
    same_request = (
        seed
        for seed in range(100_000)
        if np.array_equal(draw(sampler, other_labels, tiny.num_classes, seed).ids[COLUMNS], ids)
    )
    features = {"images": tiny.clients[0].features["images"][: len(labels)]}
    requests = [
        first_question(Client(0, ExampleSet(features, held), seed, lambda: tiny.backend), plan)
        for held, seed in ((labels, 1), (other_labels, next(same_request)))
    ]
    assert requests[0] == requests[1]


def test_asking_needs_no_runtime(tiny: TinyFederation) -> None:
    def open_backend() -> None:
        raise AssertionError("the backend was opened before there was a slice")

    client = Client(0, tiny.clients[0], 1, open_backend)  # type: ignore[arg-type]  # gives none
    assert first_question(client, tiny_plan())


def test_adjustments_are_zero_for_positives_and_when_everything_is_sampled() -> None:
    labels = np.array([1, 4])
    sample = draw(UniformNegatives(4), labels, 10)
    adjust, is_positive = sample.sides["adjust"], np.isin(sample.ids[COLUMNS], labels)
    assert not adjust[is_positive].any()
    assert np.allclose(adjust[~is_positive], np.log(8 / 4))
    assert not draw(UniformNegatives(8), labels, 10).sides["adjust"].any()


def test_negatives_only_removes_the_other_positives() -> None:
    labels = np.array([1, 4])
    sample = draw(UniformNegatives(4, exclude_positives=True), labels, 10)
    is_positive = np.isin(sample.ids[COLUMNS], labels)
    assert np.array_equal(sample.sides["adjust"] == EXCLUDED, is_positive)
    assert np.allclose(sample.sides["adjust"][~is_positive], np.log(8 / 4))
    assert np.array_equal(sample.ids[COLUMNS], draw(UniformNegatives(4), labels, 10).ids[COLUMNS])


def test_positives_only_asks_for_its_own_classes_and_full_softmax_for_all() -> None:
    labels = np.array([7, 2, 2])
    for sampler, expected in ((Positives(), [2, 7]), (AllRows(), list(range(9)))):
        sample = draw(sampler, labels, 9)
        assert list(sample.ids[COLUMNS]) == expected
        assert sampler.widest(2, 9) == len(expected)
        assert not sample.sides["adjust"].any()
        assert sample.sides["adjust"].dtype == np.float32


@pytest.mark.parametrize("name", [name for name, kind in SAMPLERS.items() if not hasattr(kind, "outputs")])
def test_labels_out_of_range_are_named_by_every_sampler_of_rows(name: str) -> None:
    needed = {"num_negatives": 2, "num_random": 1}
    known = {field.name for field in fields(cast(Any, SAMPLERS[name]))}
    settings = {key: value for key, value in needed.items() if key in known}
    sampler = chosen(SAMPLERS, Choice(name, settings), "sampler")
    with pytest.raises(ValueError, match="labels reach from 3 to 12; expected 0 to 9"):
        draw(sampler, np.array([3, 12]), 10)
    with pytest.raises(ValueError, match="holds no examples"):
        draw(sampler, np.zeros(0, np.int64), 5)


def test_a_negative_number_of_negatives_is_refused() -> None:
    with pytest.raises(ValueError, match="num_negatives is -1; expected 0 or more"):
        UniformNegatives(-1)


PINNED_BELOW = [564, 756, 240, 915, 453, 246]
PINNED_SUBSET = [4, 18, 27, 30, 40]
PINNED_PERMUTATION = [2, 6, 7, 1, 4, 3, 0, 5]
PINNED_SAMPLE = [4, 7, 27, 30, 31, 41]
