"""Every family of operators in both lowerings, over random shapes, value and gradients, against float64."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from helpers.networks.lowered_operators import Function, assert_right
from helpers.networks.operator_cases import ACTIVATIONS, FAMILIES, Case, draw, positive
from torch.nn import functional as F


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{family}: {name}")
        for family, cases in FAMILIES.items()
        for name, case in cases.items()
    ],
)
def test_a_formulation(case: Case) -> None:
    function, *tensors = case
    assert_right(function, *tensors)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation(name: str) -> None:
    assert_right(ACTIVATIONS[name], 3 * draw(2, 6, 5, 4))


def test_prelu() -> None:
    assert_right(lambda a, w: F.prelu(a, w), draw(2, 3, 4, 5), positive(3))


def random_convolution(seed: int) -> Case:
    """Over images and lines, grouped, dilated, transposed, strided, with and without a bias."""
    rng = random.Random(seed)
    axes, groups = rng.choice((1, 2, 2)), rng.choice((1, 1, 2, 3))
    inside, outside = rng.choice((1, 2, 16)), rng.choice((1, 1, 3))
    kernel = [rng.choice((1, 2, 3, 5)) for _ in range(axes)]
    transposed = rng.random() < 0.3
    options = {
        "stride": [rng.choice((1, 1, 2, 3)) for _ in range(axes)],
        "padding": [rng.choice((0, 1, 2)) for _ in range(axes)],
        "dilation": [rng.choice((1, 1, 2)) for _ in range(axes)],
        "groups": groups,
    }
    layer = getattr(F, f"conv{'_transpose' if transposed else ''}{axes}d")
    x = draw(3, groups * inside, *(rng.randint(1, 12) for _ in range(axes)))
    w = draw(groups * (inside if transposed else outside), outside if transposed else inside, *kernel)
    tensors = (x, w, draw(groups * outside)) if rng.random() < 0.5 else (x, w)
    function: Function = functools.partial(layer, **options)
    try:
        function(x, w)
    except RuntimeError:  # the image is smaller than the kernel
        return random_convolution(seed + 1000)
    return (function, *tensors)


@pytest.mark.parametrize("seed", range(60))
def test_a_convolution_of_any_geometry(seed: int) -> None:
    with torch.backends.mkldnn.flags(enabled=False):  # which refuses some of them
        function, *tensors = random_convolution(seed)
        assert_right(function, *tensors)
