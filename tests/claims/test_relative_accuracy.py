"""Relative accuracy, and rounds to reach it, on numbers of Table 5 of "Federated Visual Classification"."""

from __future__ import annotations

import pytest

from server_sim.metrics.relative_accuracy import relative_accuracy, rounds_to

CENTRALIZED = 0.579


def test_relative_accuracy_is_the_share_of_what_centralized_training_reaches() -> None:
    assert relative_accuracy(0.572, CENTRALIZED) == pytest.approx(0.9879, abs=1e-4)
    assert relative_accuracy(CENTRALIZED, CENTRALIZED) == 1
    with pytest.raises(ValueError, match="expected more than 0"):
        relative_accuracy(0.5, 0.0)


def test_rounds_are_those_of_the_first_evaluation_that_reaches_the_target() -> None:
    # A run that falls back again has reached it all the same.
    curve = [(60, 0.06), (116, 0.30), (200, 0.28), (420, 0.53)]
    assert [rounds_to(curve, CENTRALIZED, target) for target in (0.1, 0.5, 0.9)] == [60, 116, 420]
    assert rounds_to(curve, CENTRALIZED, 0.95) is None
    assert rounds_to([], CENTRALIZED, 0.1) is None
