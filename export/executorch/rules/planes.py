"""Which operators of `ondevice/native` an ATen operator becomes: the rules, and the table of them.

A rule takes the rewrite and what it knows of the node's arguments: a node, or a formula over planes that it may hand on.  A
new operator is a function with a line in `RULES`; one that touches no planes needs nothing.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import Target

from export.executorch.formulas import Activation
from export.executorch.rewrite import Rewrite, Rule
from export.executorch.rules.arithmetic import (
    add,
    divide,
    mean,
    multiply,
    multiply_by_number,
    sum_over,
)
from export.executorch.rules.convolution import convolution, convolution_backward
from export.executorch.rules.dimensions import (
    concatenate,
    expand,
    pad,
    split,
    squeeze,
    take,
    take_backward,
    unsqueeze,
    view,
)
from export.executorch.rules.matrices import (
    batched_product,
    embedding_backward,
    layer_norm,
    layer_norm_backward,
    permute,
    product,
    product_from,
    softmax,
    softmax_backward,
    swap,
    transpose,
)
from export.executorch.rules.norms import (
    backward_by_output,
    backward_of,
    forward_of,
    frozen_norm,
    frozen_norm_backward,
    gelu,
    gelu_backward,
    group_norm,
    group_norm_backward,
    hardtanh,
    hardtanh_backward,
    mish_backward,
    softplus,
    softplus_backward,
    threshold_backward,
)
from export.executorch.rules.pooling import (
    adaptive_pool,
    adaptive_pool_backward,
    average_pool,
    average_pool_backward,
    max_pool,
    max_pool_backward,
)

aten = torch.ops.aten


def rewrite(traced: fx.GraphModule) -> fx.GraphModule:
    """The same program in operators of ours; placeholders, outputs and their order stay."""
    return Rewrite(traced, RULES).run()


RULES: dict[Target, Rule] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    # Norms and activations.
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten._native_batch_norm_legit_no_training.default: frozen_norm,
    aten.native_batch_norm_backward.default: frozen_norm_backward,
    aten.relu.default: forward_of(Activation.RELU),
    aten.hardswish.default: forward_of(Activation.HARDSWISH),
    aten.hardsigmoid.default: forward_of(Activation.HARDSIGMOID),
    aten.sigmoid.default: forward_of(Activation.SIGMOID),
    aten.silu.default: forward_of(Activation.SILU),
    aten.tanh.default: forward_of(Activation.TANH),
    aten.hardtanh.default: hardtanh,
    aten.gelu.default: gelu,
    aten.softplus.default: softplus,
    aten.threshold_backward.default: threshold_backward,
    aten.hardswish_backward.default: backward_of(Activation.HARDSWISH),
    aten.hardsigmoid_backward.default: backward_of(Activation.HARDSIGMOID),
    aten.silu_backward.default: backward_of(Activation.SILU),
    aten.sigmoid_backward.default: backward_by_output(Activation.SIGMOID),
    aten.tanh_backward.default: backward_by_output(Activation.TANH),
    aten.hardtanh_backward.default: hardtanh_backward,
    aten.gelu_backward.default: gelu_backward,
    aten.softplus_backward.default: softplus_backward,
    aten.mish_backward.default: mish_backward,
    # Arithmetic.
    aten.mean.dim: mean,
    aten.mul.Tensor: multiply,
    aten.sum.dim_IntList: sum_over,
    aten.add.Tensor: add,
    aten.mul.Scalar: multiply_by_number,
    aten.div.Scalar: divide,
    # Poolings.
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.avg_pool2d.default: average_pool,
    aten.avg_pool2d_backward.default: average_pool_backward,
    aten._adaptive_avg_pool2d.default: adaptive_pool,
    aten._adaptive_avg_pool2d_backward.default: adaptive_pool_backward,
    # Dimensions.
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.dim: squeeze,
    aten.expand.default: expand,
    aten.view.default: view,
    aten.reshape.default: view,
    aten.cat.default: concatenate,
    aten.slice.Tensor: take,
    aten.slice_backward.default: take_backward,
    aten.split.Tensor: split,
    aten.split_with_sizes.default: split,
    aten.constant_pad_nd.default: pad,
    aten.permute.default: permute,
    aten.transpose.int: swap,
    # Matrices and rows.
    aten.t.default: transpose,
    aten.mm.default: product,
    aten.addmm.default: product_from,
    aten.bmm.default: batched_product,
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten.embedding_dense_backward.default: embedding_backward,
    aten._softmax.default: softmax,
    aten._softmax_backward_data.default: softmax_backward,
}
