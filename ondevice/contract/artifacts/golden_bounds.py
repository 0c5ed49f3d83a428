"""Whether a golden step that was read from a file can be one.

Artifacts may come from strangers, and the tolerance comes with them: `eager_distance` widens what a runtime may be off.
Unbounded, it would let wrong gradients pass.
"""

from __future__ import annotations

import numpy as np

from ondevice.contract.golden_step import GoldenStep
from ondevice.contract.step_signature import LOSS, Bounds, StepSignature, check_arrays, gradient_of

LARGEST_EAGER_DISTANCE = 1e-2
"""Of a gradient's norm.  MobileNetV3 has 1e-5; float32 that is off by more says nothing about a runtime."""
SMALLEST_NORM = 1e-3
"""The distance of a gradient that is all but zero is bounded by that of this one."""


def check_golden_step(golden: GoldenStep, signature: StepSignature, bounds: Bounds) -> None:
    """A ValueError says which tensor is not what the signature makes it."""
    dense = {name: np.zeros(shape, np.float32) for name, shape in signature.dense_shapes.items()}
    sizes = check_arrays(signature, {**dense, **golden.inputs}, bounds)
    for name in signature.trained:
        expected = signature[name].sizes(sizes)
        found = golden.gradients[name]
        if found.dtype != np.float32 or found.shape != expected:
            raise ValueError(
                f"{gradient_of(name)} is {found.dtype} {list(found.shape)}; expected float32 {list(expected)}"
            )
    for name, tensor in (*golden.inputs.items(), *golden.gradients.items(), (LOSS, np.array(golden.loss))):
        if not np.isfinite(tensor).all():
            raise ValueError(f"{name} holds NaN or infinity")
    for name, distance in golden.eager_distance.items():
        norm = abs(golden.loss) if name == LOSS else float(np.linalg.norm(golden.gradients[name]))
        most = LARGEST_EAGER_DISTANCE * max(norm, SMALLEST_NORM)
        if not 0 <= distance <= most:  # written so that a NaN is refused too
            raise ValueError(f"eager_distance of {name} is {distance:.3g}; expected 0 to {most:.3g}")
