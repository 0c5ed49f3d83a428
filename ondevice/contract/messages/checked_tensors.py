"""Tensors of a message that are what they should be, or `WireError`: names, shapes, types, row ids, numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ondevice.contract.messages.plain_text import plain_text
from ondevice.contract.safetensors_file import Bfloat16, Tensor
from ondevice.contract.vocabulary import FloatArray, IntArray, check_row_ids, largest_entry

FLOAT32_MAX = float(np.finfo(np.float32).max)


class WireError(ValueError):
    """A message that is not what it should be; it changed nothing.  What it quotes of the message is made plain."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain_text(reason))


def expect_names(tensors: Mapping[str, Tensor], names: set[str]) -> None:
    if tensors.keys() != names:
        missing, unknown = sorted(names - set(tensors)), sorted(set(tensors) - names)
        raise WireError(f"tensors missing: {missing or 'none'}; tensors unknown: {unknown or 'none'}")


def row_ids(tensors: Mapping[str, Tensor], table: str, size: int) -> IntArray:
    ids = integers(tensors, f"rows.{table}", None)
    try:
        check_row_ids(ids)
    except ValueError as error:
        raise WireError(f"{table}: {error}") from None
    if not ids.size or ids[-1] >= size:
        raise WireError(f"the rows of {table} reach to {ids[-1:]}; expected 1 or more ids below {size}")
    return ids


def integers(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...] | None) -> IntArray:
    tensor = tensors[name]
    if (
        isinstance(tensor, Bfloat16)
        or tensor.dtype != np.int64
        or (shape is not None and tensor.shape != shape)
    ):
        raise WireError(
            f"{name} is {_describe(tensor)}; expected I64 {list(shape) if shape else 'of one dimension'}"
        )
    return tensor


def floats(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], limit: float = FLOAT32_MAX
) -> FloatArray:
    tensor = tensors[name]
    given = tensor.bits.shape if isinstance(tensor, Bfloat16) else tensor.shape
    if given != shape or not (isinstance(tensor, Bfloat16) or tensor.dtype in (np.float32, np.float16)):
        raise WireError(f"{name} is {_describe(tensor)}; expected F32, F16 or BF16 {list(shape)}")
    values = as_float32(tensor)
    largest = largest_entry(values)
    if not largest <= FLOAT32_MAX:  # so written that NaN is caught too
        raise WireError(f"{name} holds NaN or infinity")
    if largest > limit:
        raise WireError(f"{name} reaches {largest:g}; expected at most {limit:g} (server.max_change)")
    return values


def none_beyond(values: FloatArray, limit: float) -> bool:
    """True only if all entries are finite and none is beyond the limit: one pass, and rarely False without need.

    The sum of squares is at least the largest of them, but for a last digit, whatever rounding does to it, and infinity
    and NaN stay in it.  A large sum of small entries is the need to look again.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(values, values)) <= limit * limit * (1 - 1e-6)


def as_float32(tensor: Tensor) -> FloatArray:
    return tensor.to_float32() if isinstance(tensor, Bfloat16) else tensor.astype(np.float32, copy=False)


def _describe(tensor: Tensor) -> str:
    if isinstance(tensor, Bfloat16):
        return f"BF16 {list(tensor.bits.shape)}"
    return f"{tensor.dtype} {list(tensor.shape)}"
