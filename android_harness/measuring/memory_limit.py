"""The largest micro-batch that a device survives, found by trying: the failing end is a real kill for memory.

Memory grows almost linearly with the micro-batch, so that two survivors tell where to look, and once that was too far the
middle does; what decides is that one micro-batch was seen to live and the next one to be killed.
"""

from __future__ import annotations

from collections.abc import Callable


def largest_survivor(
    attempt: Callable[[int], int | None], available_bytes: int, largest: int
) -> tuple[int, int | None]:
    """`attempt(micro_batch)` gives the peak in bytes, or None if it was killed.

    The answer is the largest that lived, 0 if none, and the smallest that was killed, None if `largest` lived too.
    """
    peaks: dict[int, int] = {}
    killed = largest + 1
    guess = stride = 1
    while True:
        peak = attempt(guess)
        if peak is None:
            killed = guess
        else:
            peaks[guess] = peak
        lived = max(peaks, default=0)
        if killed - lived == 1:
            return lived, killed if killed <= largest else None
        if killed <= largest:
            guess = (lived + killed) // 2
        else:
            guess = min(max(_predict(peaks, available_bytes), lived + stride), largest)
            stride *= 2


def _predict(peaks: dict[int, int], available_bytes: int) -> int:
    """Where a line through the smallest and the largest survivor meets the memory there is."""
    fewest, most = min(peaks), max(peaks)
    if fewest == most:
        return 2 * most
    per_example = max((peaks[most] - peaks[fewest]) / (most - fewest), 1.0)
    return most + int((available_bytes - peaks[most]) / per_example)
