"""Which operators of a traced step stay whole, and what becomes of the others: the table of `export.normal_form`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._ops import OpOverload

aten = torch.ops.aten

WHOLE = frozenset(
    (
        "convolution",
        "convolution_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_layer_norm",
        "native_layer_norm_backward",
        "_native_batch_norm_legit_no_training",
        "native_batch_norm_backward",
        "relu",
        "threshold_backward",
        "gelu",
        "gelu_backward",
        "silu",
        "silu_backward",
        "hardswish",
        "hardswish_backward",
        "hardsigmoid",
        "hardsigmoid_backward",
        "hardtanh",
        "hardtanh_backward",
        "leaky_relu",
        "leaky_relu_backward",
        "elu",
        "elu_backward",
        "sigmoid",
        "sigmoid_backward",
        "tanh",
        "tanh_backward",
        "softplus",
        "softplus_backward",
        "mish",
        "mish_backward",
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "logsumexp",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "avg_pool2d",
        "avg_pool2d_backward",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "upsample_nearest2d",
        "upsample_nearest2d_backward",
        "upsample_bilinear2d",
        "upsample_bilinear2d_backward",
        "upsample_bicubic2d",
        "upsample_bicubic2d_backward",
        "embedding",
        "embedding_dense_backward",
        "bmm",
        "mm",
        "addmm",
        "cat",
        "split",
        "split_with_sizes",
        "index",
        "index_put",
        "gather",
        "scatter",
        "scatter_add",
        "constant_pad_nd",
        "slice_backward",
        "select_backward",
        "roll",
        "t",
        "rsub",
        "arange",
        "ones_like",
        "sum",
        "sym_size",
    )
)
"""Operators outside the core set, or with a decomposition, that stay as they are, in all their overloads."""

SAME_VALUE = (aten.detach.default, aten.alias.default, aten.clone.default, aten.lift_fresh_copy.default)
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_BATCH_NORM = aten._native_batch_norm_legit_no_training.default


def has_to_change(target: object) -> bool:
    return isinstance(target, OpOverload) and (target._schema.is_mutable or target in decompositions())


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    if not _TABLE:
        for table, wanted in (
            (core_aten_decompositions(), _outside_core),
            (decomposition_table, _is_gradient),
        ):
            for overload, decomposition in table.items():
                if isinstance(overload, OpOverload) and wanted(overload) and _name(overload) not in WHOLE:
                    _TABLE.setdefault(overload, decomposition)
        for overload in SAME_VALUE + VIEWS:
            _TABLE.pop(overload, None)
        _TABLE.update(_OURS)
    return _TABLE


_TABLE: dict[OpOverload, Callable[..., Any]] = {}


def _outside_core(overload: OpOverload) -> bool:
    return torch.Tag.core not in overload.tags or "_pad" in _name(overload)


def _is_gradient(overload: OpOverload) -> bool:
    return "_backward" in _name(overload)


def _name(overload: OpOverload) -> str:
    return str(overload._schema.name).removeprefix("aten::")


# BatchNorm has a handful of names; with given statistics they all mean the same.


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    epsilon: float,
    *_cudnn_enabled: bool,
) -> Any:
    if not training:
        return _BATCH_NORM(x, weight, bias, mean, variance, momentum, epsilon)
    arguments = (x, weight, bias, mean, variance, training, momentum, epsilon)
    return decomposition_table[aten.native_batch_norm.default](*arguments)


def _batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    saved_mean: Tensor | None,
    saved_deviation: Tensor | None,
    train: bool,
    epsilon: float,
    wanted: Sequence[bool],
) -> Any:
    if not train and saved_mean is None and saved_deviation is None:
        return NotImplemented
    arguments = (gradient, x, weight, mean, variance)
    if not train:
        return aten.native_batch_norm_backward.default(*arguments, None, None, False, epsilon, wanted)
    given = (*arguments, saved_mean, saved_deviation, train, epsilon, wanted)
    return decomposition_table[aten.native_batch_norm_backward.default](*given)


def _batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, epsilon: float
) -> Any:
    return _batch_norm(x, weight, bias, None, None, training, momentum, epsilon)


def _variance_and_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = list(range(x.dim())) if dim is None else dim
    return x.var(dims, correction=1 if correction is None else correction, keepdim=keepdim), x.mean(
        dims, keepdim
    )


_OURS: dict[OpOverload, Callable[..., Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.var_mean.correction: _variance_and_mean,
}
