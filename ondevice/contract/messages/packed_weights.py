"""Weights of an update in fewer bytes than two per number: rows of int8 with their scales, or the largest entries alone.

| a weight `W` as     | travels as                                                                                  |
|---------------------|---------------------------------------------------------------------------------------------|
| int8 rows           | `W` I8 of its own shape; `scale.W` F32, one per row, or a single one below two dimensions     |
| its largest entries | `W` [k], in any form that a weight may have; `position.W` I32 [k]: where they belong, sorted  |

Whoever reads them has float32 of the weight's own shape again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondevice.contract.safetensors_file import Bfloat16, Tensor
from ondevice.contract.vocabulary import FloatArray

SCALE, POSITION = "scale.", "position."

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Int8Rows:
    """A row's entries are its whole numbers times its scale."""

    values: npt.NDArray[np.int8]
    scales: FloatArray


@dataclass(frozen=True)
class Largest:
    """Some entries of a weight, counted in row-major order; the others are 0."""

    positions: npt.NDArray[np.int32]
    values: Tensor | Int8Rows


Weight = Tensor | Int8Rows | Largest
"""What a transform may make of a weight."""


class BadPacking(ValueError):
    """A weight that cannot be unpacked."""


def num_scales(shape: Shape) -> int:
    """A row is what one output channel, or one id of a table, has."""
    return shape[0] if len(shape) > 1 else 1


def packed(weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """The tensors of a message: 4-byte types before the others, so that they stay aligned."""
    beside: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if isinstance(weight, Largest):
            beside[f"{POSITION}{name}"] = weight.positions
            weight = weight.values
        if isinstance(weight, Int8Rows):
            beside[f"{SCALE}{name}"] = weight.scales
            weight = weight.values
        values[name] = weight
    return {**beside, **values}


def unpacked(tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> Mapping[str, Tensor]:
    """Float32 in place of what was packed; `shapes` are those that the weights must have.

    Nothing is allocated before everything about a weight was checked.  What is not packed is left as it is.
    """
    if not any(name.startswith((SCALE, POSITION)) for name in tensors):
        return tensors
    rest = dict(tensors)
    for name, shape in shapes.items():
        if name not in rest:
            continue
        scales, positions = rest.pop(f"{SCALE}{name}", None), rest.pop(f"{POSITION}{name}", None)
        if positions is not None:
            where = _checked_positions(name, positions, shape)
            entries = _entries(name, rest[name], scales, where.shape)
            whole = np.zeros(shape, np.float32)
            whole.reshape(-1)[where] = entries
            rest[name] = whole
        elif scales is not None:
            rest[name] = _scaled(name, rest[name], scales, shape)
    return rest


def _entries(name: str, values: Tensor, scales: Tensor | None, shape: Shape) -> FloatArray:
    if scales is not None:
        return _scaled(name, values, scales, shape)
    if isinstance(values, Bfloat16):
        floats = values.to_float32() if values.bits.shape == shape else None
    else:
        is_float = values.dtype in (np.float32, np.float16) and values.shape == shape
        floats = values.astype(np.float32) if is_float else None
    if floats is None:
        raise BadPacking(f"{name} is not F32, F16 or BF16 {list(shape)}: an entry per position")
    return floats


def _scaled(name: str, values: Tensor, scales: Tensor, shape: Shape) -> FloatArray:
    if isinstance(values, Bfloat16) or values.dtype != np.int8 or values.shape != shape:
        raise BadPacking(f"{name} has scales; expected I8 {list(shape)}")
    rows = num_scales(shape)
    if isinstance(scales, Bfloat16) or scales.dtype != np.float32 or scales.shape != (rows,):
        raise BadPacking(f"{SCALE}{name} is not F32 [{rows}]: one scale per row")
    # So written that NaN is caught too.
    if not ((scales >= 0) & (scales <= np.finfo(np.float32).max)).all():
        raise BadPacking(f"{SCALE}{name} holds a negative number, NaN or infinity")
    floats: FloatArray = values.astype(np.float32)
    # What is beyond float32 becomes infinity, which the reader refuses as in any other weight.
    with np.errstate(over="ignore"):
        floats *= scales.reshape(rows, *(1,) * (len(shape) - 1)) if len(shape) > 1 else scales[0]
    return floats


def _checked_positions(name: str, positions: Tensor, shape: Shape) -> npt.NDArray[np.int32]:
    if isinstance(positions, Bfloat16) or positions.dtype != np.int32 or positions.ndim != 1:
        raise BadPacking(f"{POSITION}{name} is not I32 of one dimension")
    size = int(np.prod(shape, dtype=np.int64))
    if positions.size and (positions[0] < 0 or positions[-1] >= size):
        raise BadPacking(
            f"{POSITION}{name} reaches from {positions[0]} to {positions[-1]}; expected 0 to {size - 1}"
        )
    if (positions[1:] <= positions[:-1]).any():
        raise BadPacking(f"{POSITION}{name} is not sorted and unique")
    return positions
