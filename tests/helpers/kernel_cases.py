"""What the tests of the kernels share: numbers to begin with, and how near float32 comes to float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from torch import Tensor

from helpers.native_kernels import FloatArray

sweep = settings(max_examples=40, deadline=None)


def random(seed: int, *shape: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def assert_close(
    found: FloatArray, expected: Tensor | FloatArray | npt.NDArray[np.float64], summed: float = 0.0
) -> None:
    """To float32's rounding in a sum; `expected` may come in double.  `summed`: the size of terms that may cancel."""
    expected = np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    distance = np.linalg.norm(found - expected)
    assert distance <= 2e-6 * (np.linalg.norm(expected) + summed) + 1e-6 * found.size**0.5, (
        f"{distance:.2e} apart"
    )
