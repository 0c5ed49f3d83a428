"""The update that the servers take in: MobileNetV3-Large's differences and 170 rows of W, 12 MB of float32."""

from __future__ import annotations

import numpy as np

from ondevice.backends.eager import initial_parameters
from ondevice.contract.vocabulary import FloatArray, IntArray, StepSpec

UPDATES = 8
"""In one turn, each from memory of its own."""
CLASSES, WIDTH, DIM = 10_000, 170, 64


def update_arrays() -> tuple[dict[str, FloatArray], IntArray, FloatArray]:
    """Differences of the dense parameters; the ids and differences of the rows."""
    rng = np.random.default_rng(0)
    shapes = {
        name: value.shape for name, value in initial_parameters(StepSpec(image_shape=(3, 32, 32)), 0).items()
    }
    dense = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    ids = np.sort(rng.choice(CLASSES, WIDTH, replace=False))
    return dense, ids, rng.standard_normal((WIDTH, DIM), np.float32)
