"""The training step as one graph of ATen operators, forward and backward pass together: what the lowerings translate.

Autograd runs under fake tensors (shapes, no numbers) and `make_fx` writes down every operator that it
dispatches, so the graph *is* `ondevice.model.train_step`, gradients included: no lowering repeats its mathematics.

    placeholders  the trainable extractor tensors, then columns, adjust, images, labels, example_weight
    outputs       loss, one gradient for each trainable extractor tensor, the gradient of columns

The width m is symbolic: one artifact serves any |S_k|.  The micro-batch is static, because the fastest formulations
reshape by it and padding is exact.  Tensors that do not learn (`StepSpec.train`) become constants of the graph;
autograd takes no gradient of them, so the frozen part has no backward operator and keeps no activation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from ondevice.model.train_step import TrainStep, loss_and_gradients

DATA_INPUTS = ("columns", "adjust", "images", "labels", "example_weight")
"""What the step takes after the trainable tensors."""

Traceable = Callable[[dict[str, Tensor], Sequence[Tensor]], list[Tensor]]
"""(the extractor's tensors by name, data inputs) -> outputs"""


def step_inputs(step: TrainStep) -> tuple[str, ...]:
    """The step's inputs by name, in contract order."""
    return (*step.trainable, *DATA_INPUTS)


def step_outputs(step: TrainStep) -> tuple[str, ...]:
    """The step's outputs by name, in contract order; a gradient is called after its tensor."""
    return ("loss", *(f"gradient/{name}" for name in (*step.trainable, "columns")))


def trace_step(step: TrainStep, micro_batch: int) -> fx.GraphModule:
    """Forward and backward: the contract above."""

    def run(tensors: dict[str, Tensor], data: Sequence[Tensor]) -> list[Tensor]:
        leaves = {
            name: tensor.detach().requires_grad_(name in step.trainable) for name, tensor in tensors.items()
        }
        columns = data[0].detach().requires_grad_()
        loss = _loss(step, leaves, (columns, *data[1:]))
        learning = [leaves[name] for name in step.trainable]
        loss, extractor_gradients, columns_gradient = loss_and_gradients(loss, learning, columns)
        return [loss, *extractor_gradients, columns_gradient]

    return _trace(run, step, micro_batch, DATA_INPUTS)


def trace_loss(step: TrainStep, micro_batch: int) -> fx.GraphModule:
    """The forward pass of the step, for a runtime that differentiates by itself: loss, embeddings."""

    def run(tensors: dict[str, Tensor], data: Sequence[Tensor]) -> list[Tensor]:
        embeddings: list[Tensor] = []
        hook = step.extractor.register_forward_hook(lambda _, __, output: embeddings.append(output))
        try:
            with torch.no_grad():
                return [_loss(step, tensors, data), *embeddings]
        finally:
            hook.remove()

    return _trace(run, step, micro_batch, DATA_INPUTS)


def trace_embed(step: TrainStep, micro_batch: int) -> fx.GraphModule:
    """The extractor alone, for evaluation: trainable tensors and images -> embeddings [b, embedding_dim]."""

    def run(tensors: dict[str, Tensor], data: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return [functional_call(step.extractor, tensors, tuple(data))]

    return _trace(run, step, micro_batch, ("images",))


def _loss(step: TrainStep, tensors: dict[str, Tensor], data: Sequence[Tensor]) -> Tensor:
    loss: Tensor = functional_call(
        step, {f"extractor.{name}": tensor for name, tensor in tensors.items()}, tuple(data)
    )
    return loss


def _trace(run: Traceable, step: TrainStep, micro_batch: int, data_inputs: Sequence[str]) -> fx.GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    width = micro_batch + 101  # any hint will do, but a size of 1 would be taken for a constant
    data = {
        "columns": _fake(mode, torch.zeros(width, step.spec.column_dim), symbolic=True),
        "adjust": _fake(mode, torch.zeros(width), symbolic=True),
        "images": _fake(mode, torch.zeros(micro_batch, *step.spec.image_shape)),
        "labels": _fake(mode, torch.zeros(micro_batch, dtype=torch.int64)),
        "example_weight": _fake(mode, torch.zeros(micro_batch)),
    }
    tensors = {name: _fake(mode, tensor.detach()) for name, tensor in step.extractor.named_parameters()}
    with mode, enable_python_dispatcher():
        traced = make_fx(run)(tensors, [data[name] for name in data_inputs])
    return _finish(traced, step, (*tensors, *data_inputs))


def _fake(mode: FakeTensorMode, tensor: Tensor, symbolic: bool = False) -> Tensor:
    """A tensor without numbers, its first size symbolic if asked."""
    sizes = [DimDynamic.STATIC] * tensor.dim()
    if symbolic:
        sizes[0] = DimDynamic.DYNAMIC
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
    return mode.from_tensor(tensor, symbolic_context=context)


def _finish(traced: fx.GraphModule, step: TrainStep, names: Sequence[str]) -> fx.GraphModule:
    """Name the placeholders, turn those of the frozen tensors into constants, and drop what nothing reads."""
    graph = traced.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for name, node in zip(names, placeholders, strict=True):
        flat_name = name.replace(".", "_")
        if name in step.trainable or name in DATA_INPUTS:
            node.target = node.name = flat_name
            continue
        traced.register_buffer(flat_name, step.extractor.get_parameter(name).detach())
        with graph.inserting_after(placeholders[-1]):  # torch.export wants placeholders before all else
            constant = graph.get_attr(flat_name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default:  # autograd's bookkeeping; nothing to compute
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()
    graph.set_codegen(fx.graph.CodeGen())  # flat arguments, instead of the containers that we traced with
    traced.recompile()
    return traced
