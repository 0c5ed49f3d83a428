"""Top-1 and MAP@R against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ondevice.contract.vocabulary import LogitKind
from server_sim.metrics.map_at_r import map_at_r
from server_sim.metrics.top1 import top1_accuracy


def test_top1_picks_the_nearest_direction_under_cosine_and_the_largest_sum_under_dot() -> None:
    embeddings = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    labels = np.array([0, 1, 1])
    columns = np.array([[10, 0], [0, 1]], np.float32)  # long, but length does not count under cosine
    assert top1_accuracy(embeddings, labels, [columns], "cosine") == pytest.approx(
        2 / 3
    )  # the tie goes to class 0
    with_bias = np.array([[10, 0, 0], [0, 1, 20]], np.float32)
    assert top1_accuracy(embeddings, labels, [with_bias], "dot") == pytest.approx(
        2 / 3
    )  # the bias wins everywhere


@pytest.mark.parametrize("logits", ["cosine", "dot"])
def test_top1_is_the_same_whatever_blocks_the_classes_come_in(logits: LogitKind) -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((600, 4), np.float32)
    columns = rng.standard_normal((50, 5 if logits == "dot" else 4), np.float32)
    labels = rng.integers(0, 50, 600)
    whole = top1_accuracy(embeddings, labels, [columns], logits)
    assert 0 < whole < 1
    assert top1_accuracy(embeddings, labels, np.split(columns, [1, 7, 30]), logits) == whole


def test_special_tokens_are_no_answers_in_whichever_block_they_come() -> None:
    embeddings = np.eye(4, dtype=np.float32)
    # Classes 0 to 3 are special and win everywhere; behind them every example has a class of its own.
    columns = np.concatenate([np.full((4, 4), 9, np.float32), np.eye(4, dtype=np.float32)])
    with_bias = np.pad(columns, ((0, 0), (0, 1)))
    labels = np.array([4, 5, 6, 7])
    for blocks in ([with_bias], np.split(with_bias, [1, 3, 6])):
        assert top1_accuracy(embeddings, labels, blocks, "dot") == 0
        assert top1_accuracy(embeddings, labels, blocks, "dot", num_special=4) == 1


def test_map_at_r_is_equation_9() -> None:
    """Points on a quarter circle, so that the nearest are those of the nearest angle."""
    angles = np.deg2rad([0, 1, 3, 7, 15])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    labels = np.array([0, 0, 1, 0, 1])
    # order of the others by distance, and whether they are right:
    #   0: 1(yes) 2(no)   -> (1/1 + 0) / 2       1: 0(yes) 2(no)  -> 1/2
    #   2: 1(no) 0(no)    -> 0                   3: 2(no) 1(yes)  -> (0 + 1/2) / 2
    #   4: 3(no) 2(yes)   -> (0 + 1/2) / 2
    assert map_at_r(embeddings, labels, retrieved=2) == pytest.approx((0.5 + 0.5 + 0 + 0.25 + 0.25) / 5)


def test_map_at_r_matches_a_slow_loop_over_many_blocks() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((600, 8)).astype(np.float32)
    labels = rng.integers(0, 40, 600)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    expected = 0.0
    for query in range(600):
        distance = np.linalg.norm(unit - unit[query], axis=1)
        distance[query] = np.inf
        right = labels[np.argsort(distance)[:10]] == labels[query]
        expected += sum(right[: i + 1].mean() * right[i] for i in range(10)) / 10 / 600
    assert map_at_r(embeddings, labels) == pytest.approx(expected, rel=1e-5)


def test_retrieval_needs_more_examples_than_it_retrieves() -> None:
    with pytest.raises(ValueError, match="10 examples; retrieval of 10 needs more"):
        map_at_r(np.ones((10, 2), np.float32), np.zeros(10, np.int64))
