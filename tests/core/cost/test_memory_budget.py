"""A memory budget picks the largest micro-batch that was seen to fit, in few measurements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.cost.budget import BudgetTooSmall, largest_micro_batch


def counted(peak: Callable[[int], int]) -> tuple[Callable[[int], int], list[int]]:
    asked: list[int] = []

    def measure(micro_batch: int) -> int:
        asked.append(micro_batch)
        return peak(micro_batch)

    return measure, asked


def test_a_linear_cost_is_found_in_four_measurements() -> None:
    measure, asked = counted(lambda micro_batch: 40 + 20 * micro_batch)
    assert largest_micro_batch(measure, 256, largest=32) == 10
    assert asked == [1, 2, 10, 11]


def test_no_more_than_the_largest_is_answered() -> None:
    assert largest_micro_batch(lambda micro_batch: micro_batch, 1000, largest=32) == 32


def test_a_budget_that_one_example_exceeds_is_refused_with_what_it_needs() -> None:
    with pytest.raises(BudgetTooSmall, match=r"needs 300 MB; the budget is 256 MB"):
        largest_micro_batch(lambda _: 300 << 20, 256 << 20, largest=32)


@given(st.lists(st.integers(0, 50), min_size=16, max_size=16), st.integers(0, 400))
def test_whatever_the_growth_the_answer_fits_and_the_next_does_not(growth: list[int], budget: int) -> None:
    peaks = [sum(growth[: index + 1]) for index in range(16)]
    measure, asked = counted(lambda micro_batch: peaks[micro_batch - 1])
    if peaks[0] > budget:
        with pytest.raises(BudgetTooSmall):
            largest_micro_batch(measure, budget, largest=16)
        return
    chosen = largest_micro_batch(measure, budget, largest=16)
    assert peaks[chosen - 1] <= budget
    assert chosen == 16 or peaks[chosen] > budget
    assert chosen in asked  # measured, not inferred
    assert len(set(asked)) == len(asked)
