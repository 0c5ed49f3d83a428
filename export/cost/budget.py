"""The largest micro-batch that stays within a number of bytes, found by measuring and not by a formula.

Memory grows almost linearly with the micro-batch, so that two measurements tell where to look; what decides is that one
micro-batch was seen to fit and the next one not to.
"""

from __future__ import annotations

from collections.abc import Callable

from ondevice.contract.artifact import MEGABYTE


class BudgetTooSmall(ValueError):
    """Not even one example at a time fits."""


def largest_micro_batch(peak_bytes: Callable[[int], int], budget_bytes: int, largest: int) -> int:
    """`peak_bytes(micro_batch)` measures; at most `largest` is answered."""
    fits, fits_peak = 1, peak_bytes(1)
    if fits_peak > budget_bytes:
        raise BudgetTooSmall(
            f"a step of one example needs {fits_peak / MEGABYTE:.0f} MB; the budget is {budget_bytes / MEGABYTE:.0f} MB: "
            "raise it, or choose a smaller image size, architecture or --max-width, or --train last-two"
        )
    too_many = largest + 1
    guess = 2
    while too_many - fits > 1:
        guess = min(max(guess, fits + 1), too_many - 1)
        peak = peak_bytes(guess)
        per_example = max((peak - fits_peak) / (guess - fits), 1.0)
        if peak > budget_bytes:
            too_many = guess
        else:
            fits, fits_peak = guess, peak
        guess = fits + int((budget_bytes - fits_peak) / per_example)
    return fits
