"""The training step as one graph of ATen operators, forward and backward pass together: what the lowerings translate.

Autograd runs under fake tensors (shapes, no numbers) and `make_fx` writes down every operator that it
dispatches, so the graph *is* `ondevice.model.train_step`, gradients included: no lowering repeats its mathematics.

    placeholders  the inputs of the step's signature, in its order
    outputs       its outputs

The number of rows of a table is symbolic: one artifact serves any |S_k|.  The micro-batch is static, because the fastest
formulations reshape by it and padding is exact.  Tensors that do not learn (`StepSpec.train`, buffers) become constants of
the graph; autograd takes no gradient of them, so the frozen part has no backward operator and keeps no activation.

Every operator carries the layer that it belongs to (`export.layers`).  What a lowering may rely on is `export.normal_form`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel

from export.graph_constants import unused_name
from export.layers import LayerLabels
from export.normal_form import functional, simplify
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, Bounds, rows_of
from ondevice.model.train_step import Embedding, TrainStep, step_outputs

Traceable = Callable[[dict[str, Tensor], Sequence[Tensor]], list[Tensor]]
"""(the extractor's tensors by name, data inputs) -> outputs"""


def trace_step(step: TrainStep, micro_batch: int) -> fx.GraphModule:
    """Forward and backward: the contract above."""
    tables = tuple(step.signature.table_dims)

    def run(tensors: dict[str, Tensor], data: Sequence[Tensor]) -> list[Tensor]:
        leaves = {
            name: tensor.detach().requires_grad_(name in step.trainable) for name, tensor in tensors.items()
        }
        inputs = {
            spec.name: value.detach().requires_grad_() if spec.name in tables else value
            for spec, value in zip(step.signature.data, data, strict=True)
        }
        loss = _loss(step, leaves, list(inputs.values()))
        return step_outputs(
            loss, [*(leaves[name] for name in step.trainable), *(inputs[name] for name in tables)]
        )

    return _trace(run, step, micro_batch, step.signature.data)


def trace_loss(step: TrainStep, micro_batch: int) -> fx.GraphModule:
    """The forward pass of the step, for a runtime that differentiates by itself: loss, embeddings.

    Embeddings are without noise: where the loss has some, the extractor is computed twice.
    """

    def run(tensors: dict[str, Tensor], data: Sequence[Tensor]) -> list[Tensor]:
        embeddings: list[Tensor] = []
        extractor = step.extractor
        hook = extractor.register_forward_hook(
            lambda _, inputs, output: embeddings.append(extractor.summary(output, *inputs))
        )
        try:
            with torch.no_grad():
                loss = _loss(step, tensors, data)
                if step.signature.noise:
                    named = dict(zip((spec.name for spec in step.signature.data), data, strict=True))
                    functional_call(
                        extractor, tensors, tuple(named[spec.name] for spec in step.signature.embedded)
                    )
                return [loss, embeddings[-1]]
        finally:
            hook.remove()

    return _trace(run, step, micro_batch, step.signature.data)


def trace_embed(step: TrainStep, micro_batch: int) -> fx.GraphModule:
    """The extractor alone: dense parameters and what it takes -> embeddings, as `Extractor.summary` has them."""
    embedding = Embedding(step.extractor)

    def run(tensors: dict[str, Tensor], data: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            named = {f"extractor.{name}": tensor for name, tensor in tensors.items()}
            return [functional_call(embedding, named, tuple(data))]

    return _trace(run, step, micro_batch, step.signature.embedded)


def example_array(spec: ArraySpec, sizes: Bounds) -> Tensor:
    """Zeros of an input's type and shape."""
    return torch.zeros(spec.sizes(sizes), dtype=getattr(torch, spec.dtype))


def _loss(step: TrainStep, tensors: dict[str, Tensor], data: Sequence[Tensor]) -> Tensor:
    loss: Tensor = functional_call(
        step, {f"extractor.{name}": tensor for name, tensor in tensors.items()}, tuple(data)
    )
    return loss


def _trace(run: Traceable, step: TrainStep, micro_batch: int, inputs: Sequence[ArraySpec]) -> fx.GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    # Any hint will do for the symbolic sizes, but a size of 1 would be taken for a constant.
    hints = {rows_of(table): micro_batch + 101 + at for at, table in enumerate(step.signature.table_dims)}
    sizes = {EXAMPLES: micro_batch, **hints}
    data = [
        _fake(mode, example_array(spec, sizes), [size in hints for size in spec.shape]) for spec in inputs
    ]
    tensors = {name: _fake(mode, tensor.detach()) for name, tensor in extractor_tensors(step).items()}

    def run_labelled(tensors: dict[str, Tensor], data: Sequence[Tensor]) -> list[Tensor]:
        with LayerLabels().of(step):
            return run(tensors, data)

    # As plain products and softmax, which every lowering has; and a tensor that a module merely holds is a constant.
    attention = sdpa_kernel(SDPBackend.MATH)
    with (
        mode,
        enable_python_dispatcher(),
        attention,
        _recurrent_layers_written_out(step),
        _tensors_kept(step),
    ):
        traced = make_fx(run_labelled, _allow_non_fake_inputs=True, record_stack_traces=True)(tensors, data)
    return _finish(functional(traced), step, list(tensors), [spec.name for spec in inputs])


@contextmanager
def _tensors_kept(network: nn.Module) -> Iterator[None]:
    """Of a layer that has two names, `functional_call` (torch 2.13.0) puts its own tensors back, and not the layer's."""
    held = [(layer, dict(layer._parameters), dict(layer._buffers)) for layer in network.modules()]
    try:
        yield
    finally:
        for layer, parameters, buffers in held:
            layer._parameters.update(parameters)
            layer._buffers.update(buffers)


@contextmanager
def _recurrent_layers_written_out(step: TrainStep) -> Iterator[None]:
    """An LSTM whose input needs no gradient is one operator of oneDNN otherwise, which no other runtime has."""
    if not any(isinstance(layer, nn.LSTM) for layer in step.modules()):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other processors, which the flags speak of too
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def extractor_tensors(step: TrainStep) -> dict[str, Tensor]:
    """Everything that the extractor computes with: parameters, then buffers."""
    return {**dict(step.extractor.named_parameters()), **dict(step.extractor.named_buffers())}


def _fake(mode: FakeTensorMode, tensor: Tensor, symbolic: Sequence[bool] = ()) -> Tensor:
    """A tensor without numbers, its sizes symbolic where asked."""
    sizes = [DimDynamic.DYNAMIC if dynamic else DimDynamic.STATIC for dynamic in symbolic]
    context: StatelessSymbolicContext[..., object] = StatelessSymbolicContext(
        dynamic_sizes=sizes or [DimDynamic.STATIC] * tensor.dim()
    )
    return mode.from_tensor(tensor, symbolic_context=context)


def _finish(
    traced: fx.GraphModule, step: TrainStep, tensors: Sequence[str], data: Sequence[str]
) -> fx.GraphModule:
    """Name the placeholders, turn those of the frozen tensors into constants, and drop what nothing reads."""
    graph = traced.graph
    known = extractor_tensors(step)
    learning = {name for name, _ in step.extractor.named_parameters()}
    parameters = set()
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    taken = {node.name for node in graph.nodes if node.op != "placeholder"}
    for name, node in zip([*tensors, *data], placeholders, strict=True):
        flat_name = re.sub(r"\W", "_", name)
        if name in step.trainable or name in data:
            # `a.b_c` and `a_b.c` are one name without the dots.
            node.target = node.name = _not_among(taken, flat_name)
            taken.add(node.name)
            continue
        constant_name = unused_name(traced, flat_name)
        traced.register_buffer(constant_name, known[name].detach())
        if name in learning:
            parameters.add(constant_name)
        with graph.inserting_after(placeholders[-1]):  # torch.export wants placeholders before all else
            constant = graph.get_attr(constant_name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    simplify(traced, parameters)
    graph.set_codegen(fx.graph.CodeGen())  # flat arguments, instead of the containers that we traced with
    traced.recompile()
    return traced


def _not_among(taken: Collection[str], name: str) -> str:
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
