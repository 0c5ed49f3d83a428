"""What the tests of the kernels share: numbers to begin with, and how near float32 comes to float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import settings
from torch import Tensor
from torch.nn import functional as F

from helpers.native.kernels import FloatArray

BY_NAME: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
}
"""The activations, by the kernels' names."""
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
