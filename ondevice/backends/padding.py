"""Padding: how a step of fixed size takes fewer examples, or fewer classes, than it was exported for.  It is exact.

An example of weight 0 adds nothing to the loss or to any gradient; a class whose logit is adjusted by EXCLUDED has
probability 0, so its column gets a gradient of zero and the others what they would have had without it.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ondevice.backends import Batch
from ondevice.contract.vocabulary import EXCLUDED, FloatArray, StepSpec

Scalar = TypeVar("Scalar", bound=np.generic)


def pad_batch(batch: Batch, micro_batch: int) -> Batch:
    """Up to `micro_batch` examples; the padding is black, labelled 0 and weighs nothing."""
    missing = micro_batch - len(batch.labels)
    if missing == 0:
        return batch
    return Batch(
        images=_pad_rows(batch.images, missing),
        labels=_pad_rows(batch.labels, missing),
        example_weight=_pad_rows(batch.example_weight, missing),
    )


def pad_columns(columns: FloatArray, adjust: FloatArray, width: int) -> tuple[FloatArray, FloatArray]:
    """Up to `width` classes; the padding is excluded."""
    missing = width - len(columns)
    if missing == 0:
        return columns, adjust
    return _pad_rows(columns, missing), np.pad(adjust, (0, missing), constant_values=EXCLUDED)


def check_step(
    spec: StepSpec, columns: FloatArray, adjust: FloatArray, batch: Batch, micro_batch: int, max_width: int
) -> None:
    """What a runtime would compute wrongly, or crash on, is refused before it gets there."""
    width, examples = len(columns), len(batch.images)
    if columns.dtype != np.float32 or columns.shape != (width, spec.column_dim):
        raise ValueError(f"columns are {_kind(columns)}; expected float32 [m, {spec.column_dim}]")
    if not 1 <= width <= max_width:
        raise ValueError(
            f"{width} columns; the step takes 1 to {max_width}: export with a --max-width of {width} or more"
        )
    if adjust.dtype != np.float32 or adjust.shape != (width,):
        raise ValueError(f"adjust is {_kind(adjust)}; expected float32 [{width}], one a column")
    if batch.images.dtype != np.float32 or batch.images.shape != (examples, *spec.image_shape):
        expected = ", ".join(map(str, spec.image_shape))
        raise ValueError(
            f"images are {_kind(batch.images)}; the step takes float32 [b, {expected}]: export for that size"
        )
    if not 1 <= examples <= micro_batch:
        raise ValueError(f"{examples} examples; one step takes 1 to {micro_batch}: split the batch")
    if batch.labels.dtype != np.int64 or batch.labels.shape != (examples,):
        raise ValueError(f"labels are {_kind(batch.labels)}; expected int64 [{examples}], one an image")
    if batch.labels.min() < 0 or batch.labels.max() >= width:
        raise ValueError(
            f"labels reach from {batch.labels.min()} to {batch.labels.max()}; expected positions among the {width} columns"
        )
    if batch.example_weight.dtype != np.float32 or batch.example_weight.shape != (examples,):
        raise ValueError(
            f"example_weight is {_kind(batch.example_weight)}; expected float32 [{examples}], one an image"
        )


def _pad_rows(array: npt.NDArray[Scalar], missing: int) -> npt.NDArray[Scalar]:
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def _kind(array: npt.NDArray[Scalar]) -> str:
    return f"{array.dtype}{list(array.shape)}"
