"""Whether a golden step that was read from a file can be one.

Artifacts may come from strangers, and the tolerance comes with them: `eager_distance` widens what a runtime may be off.
Unbounded, it would let wrong gradients pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ondevice.contract.golden_step import GoldenStep
from ondevice.contract.vocabulary import StepSpec

LARGEST_EAGER_DISTANCE = 1e-2
"""Of a gradient's norm.  MobileNetV3 has 1e-5; float32 that is off by more says nothing about a runtime."""
SMALLEST_NORM = 1e-3
"""The distance of a gradient that is all but zero is bounded by that of this one."""


def check_golden_step(
    golden: GoldenStep, spec: StepSpec, max_width: int, parameter_shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """A ValueError says which tensor is not what the manifest makes it."""
    if golden.columns.ndim != 2 or not 1 <= len(golden.columns) <= max_width:
        raise ValueError(
            f"columns have the shape {list(golden.columns.shape)}; expected 1 to {max_width} of them"
        )
    if golden.batch.labels.ndim != 1:
        raise ValueError(f"labels have the shape {list(golden.batch.labels.shape)}; expected one dimension")
    width, examples = len(golden.columns), len(golden.batch.labels)
    expected: dict[str, tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], tuple[int, ...]]] = {
        "columns": (golden.columns, (width, spec.column_dim)),
        "adjust": (golden.adjust, (width,)),
        "images": (golden.batch.images, (examples, *spec.image_shape)),
        "example_weight": (golden.batch.example_weight, (examples,)),
        "gradient/columns": (golden.gradients["columns"], (width, spec.column_dim)),
        **{f"gradient/{name}": (golden.gradients[name], shape) for name, shape in parameter_shapes.items()},
    }
    for name, (tensor, shape) in expected.items():
        if tensor.dtype != np.float32 or tensor.shape != shape or not np.isfinite(tensor).all():
            raise ValueError(
                f"{name} is {tensor.dtype}{list(tensor.shape)}; expected float32{list(shape)}, all finite"
            )
    labels = golden.batch.labels
    if labels.dtype != np.int64 or not examples or labels.min() < 0 or labels.max() >= width:
        raise ValueError(f"labels are not positions among the {width} columns")
    for name, distance in golden.eager_distance.items():
        norm = abs(golden.loss) if name == "loss" else float(np.linalg.norm(golden.gradients[name]))
        most = LARGEST_EAGER_DISTANCE * max(norm, SMALLEST_NORM)
        if not 0 <= distance <= most:  # written so that a NaN is refused too
            raise ValueError(f"eager_distance of {name} is {distance:.3g}; expected 0 to {most:.3g}")
