"""The joint forward and backward pass of the training step as one graph of ATen operators.

Autograd runs under fake tensors (shapes, no numbers) and `make_fx` writes down every operator that it
dispatches, so the graph *is* `ondevice.train_step`, gradients included: no lowering repeats its mathematics.

    placeholders  the trainable extractor tensors, then columns, adjust, images, labels, example_weight
    outputs       loss, one gradient for each trainable extractor tensor, the gradient of columns

The width m is always symbolic: one artifact serves any |S_k|.  The micro-batch is static unless asked
otherwise, because the fastest convolution formulations reshape by it.  Tensors that do not learn
(`StepSpec.train`) become constants of the graph; autograd takes no gradient of them, so the frozen part has
no backward operator and keeps no activation.
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

from ondevice.train_step import TrainStep, loss_and_gradients

DATA_INPUTS = ("columns", "adjust", "images", "labels", "example_weight")
"""What the step takes after the trainable tensors."""


def step_inputs(step: TrainStep) -> tuple[str, ...]:
    """The step's inputs by name, in contract order."""
    return (*step.trainable, *DATA_INPUTS)


def step_outputs(step: TrainStep) -> tuple[str, ...]:
    """The step's outputs by name, in contract order; a gradient is called after its tensor."""
    return ("loss", *(f"gradient/{name}" for name in (*step.trainable, "columns")))


def trace_step(step: TrainStep, micro_batch: int, symbolic_batch: bool = False) -> fx.GraphModule:
    """The step's graph for `micro_batch` examples, or for any number of them if `symbolic_batch`."""
    names, parameters = _named_parameters(step)

    def run(tensors: Sequence[Tensor], columns: Tensor, *data: Tensor) -> list[Tensor]:
        leaves = {
            name: tensor.detach().requires_grad_(name in step.trainable)
            for name, tensor in zip(names, tensors, strict=True)
        }
        columns = columns.detach().requires_grad_()
        module_tensors = {f"extractor.{name}": tensor for name, tensor in leaves.items()}
        loss: Tensor = functional_call(step, module_tensors, (columns, *data))
        learning = [leaves[name] for name in step.trainable]
        loss, extractor_gradients, columns_gradient = loss_and_gradients(loss, learning, columns)
        return [loss, *extractor_gradients, columns_gradient]

    fake = _FakeInputs(symbolic_batch)
    batch = max(micro_batch, 2) if symbolic_batch else micro_batch  # torch specialises a symbolic size of 1
    width = batch + 101  # symbolic sizes that start equal are taken for one and the same
    traced = fake.trace(
        run,
        [fake.static(parameter) for parameter in parameters],
        fake.symbolic(torch.zeros(width, step.spec.column_dim)),
        fake.symbolic(torch.zeros(width)),
        fake.batched(torch.zeros(batch, *step.spec.image_shape)),
        fake.batched(torch.zeros(batch, dtype=torch.int64)),
        fake.batched(torch.zeros(batch)),
    )
    return _finish(traced, step, DATA_INPUTS)


def trace_embed(step: TrainStep, micro_batch: int, symbolic_batch: bool = False) -> fx.GraphModule:
    """The extractor alone, for evaluation: trainable tensors and images -> embeddings [b, embedding_dim]."""
    names, parameters = _named_parameters(step)

    def run(tensors: Sequence[Tensor], images: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [functional_call(step.extractor, dict(zip(names, tensors, strict=True)), (images,))]

    fake = _FakeInputs(symbolic_batch)
    batch = max(micro_batch, 2) if symbolic_batch else micro_batch
    images = fake.batched(torch.zeros(batch, *step.spec.image_shape))
    traced = fake.trace(run, [fake.static(parameter) for parameter in parameters], images)
    return _finish(traced, step, ("images",))


class _FakeInputs:
    """Makes the fake inputs of one trace, each dimension static or symbolic, and runs the trace."""

    def __init__(self, symbolic_batch: bool) -> None:
        self._mode = FakeTensorMode(shape_env=ShapeEnv())
        self._symbolic_batch = symbolic_batch

    def static(self, tensor: Tensor) -> Tensor:
        return self._fake(tensor, DimDynamic.STATIC)

    def symbolic(self, tensor: Tensor) -> Tensor:
        return self._fake(tensor, DimDynamic.DYNAMIC)

    def batched(self, tensor: Tensor) -> Tensor:
        return self.symbolic(tensor) if self._symbolic_batch else self.static(tensor)

    def trace(self, run: Callable[..., list[Tensor]], *inputs: object) -> fx.GraphModule:
        with self._mode, enable_python_dispatcher():
            return make_fx(run)(*inputs)

    def _fake(self, tensor: Tensor, first: DimDynamic) -> Tensor:
        sizes = [first, *[DimDynamic.STATIC] * (tensor.dim() - 1)][: tensor.dim()]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return self._mode.from_tensor(tensor, symbolic_context=context)


def _named_parameters(step: TrainStep) -> tuple[list[str], list[Tensor]]:
    names = [name for name, _ in step.extractor.named_parameters()]
    return names, [step.extractor.get_parameter(name).detach() for name in names]


def _finish(traced: fx.GraphModule, step: TrainStep, data_inputs: Sequence[str]) -> fx.GraphModule:
    """Name the placeholders, turn those of the frozen tensors into constants, and drop what nothing reads."""
    names = [*_named_parameters(step)[0], *data_inputs]
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for name, node in zip(names, placeholders, strict=True):
        flat_name = name.replace(".", "_")
        if name in step.trainable or name in data_inputs:
            node.target = node.name = flat_name
            continue
        traced.register_buffer(flat_name, step.extractor.get_parameter(name).detach())
        with traced.graph.inserting_before(node):
            constant = traced.graph.get_attr(flat_name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        traced.graph.erase_node(node)
    for node in list(traced.graph.nodes):
        if node.target is torch.ops.aten.detach.default:  # autograd's bookkeeping; nothing to compute
            node.replace_all_uses_with(node.args[0])
    _move_constants_after_placeholders(traced.graph)
    traced.graph.set_codegen(
        fx.graph.CodeGen()
    )  # flat arguments, instead of the list of tensors that we traced with
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _move_constants_after_placeholders(graph: fx.Graph) -> None:
    """torch.export wants every placeholder before anything else."""
    nodes = list(graph.nodes)
    last_placeholder = [node for node in nodes if node.op == "placeholder"][-1]
    for node in nodes:
        if node.op == "get_attr":
            last_placeholder.append(node)
