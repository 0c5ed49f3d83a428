"""The training step as an ExecuTorch program: one .pte for every width up to a maximum, weights in, gradients out.

`export.trace` gives the joint forward and backward graph, `export.executorch.rules.planes` rewrites it to the operators of
`ondevice/native`, and ExecuTorch plans its memory and serialises it.  The width m is dynamic and memory is planned for its
maximum; the micro-batch is static, since a dynamic batch is specialised away by torch.export.  Pure: bytes come back.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

import export.executorch.operators  # noqa: F401  # declares the operators
from export.executorch.rules.planes import rewrite
from export.trace import trace_embed, trace_step
from ondevice.model.train_step import TrainStep


def lower_step(step: TrainStep, micro_batch: int, max_width: int) -> bytes:
    """step.pte: the contract (`ondevice.model.train_step`) for `micro_batch` examples and 1 to `max_width` columns."""
    if max_width < 2:
        raise ValueError(
            f"max_width is {max_width}; expected 2 or more: one class alone has nothing to learn from"
        )
    width = torch.export.Dim("width", min=1, max=max_width)
    spec = step.spec
    example = (
        torch.zeros(max_width, spec.column_dim),
        torch.zeros(max_width),
        torch.zeros(micro_batch, *spec.image_shape),
        torch.zeros(micro_batch, dtype=torch.int64),
        torch.zeros(micro_batch),
    )
    tensors = tuple(tensor.detach() for tensor in step.trainable_tensors())
    dynamic = (*[None] * len(tensors), {0: width}, {0: width}, None, None, None)
    return _to_program(rewrite(trace_step(step, micro_batch)), (*tensors, *example), dynamic)


def lower_embed(step: TrainStep, micro_batch: int) -> bytes:
    """embed.pte: trainable tensors and images [micro_batch, C, H, W] -> embeddings."""
    tensors = tuple(tensor.detach() for tensor in step.trainable_tensors())
    example = (*tensors, torch.zeros(micro_batch, *step.spec.image_shape))
    return _to_program(rewrite(trace_embed(step, micro_batch)), example, (None,) * len(example))


def planned_memory(program: bytes) -> int:
    """Bytes of the arena that a program asks for: activations and their gradients; inputs and outputs are the caller's."""
    from executorch.exir._serialize import _program  # type: ignore[import-untyped]

    plan = _program.deserialize_pte_binary(program).program.execution_plan[0]
    return sum(plan.non_const_buffer_sizes)


@dataclass(frozen=True)
class OperatorCall:
    """One operator of a program as it is called."""

    instruction: int
    operator: str
    sizes: tuple[tuple[int, ...], ...]
    """Of the tensors that it takes and gives, at the largest width."""


def program_calls(program: bytes) -> list[OperatorCall]:
    """Every operator call of a program, in order."""
    from executorch.exir._serialize import _program
    from executorch.exir.schema import KernelCall  # type: ignore[import-untyped]

    plan = _program.deserialize_pte_binary(program).program.execution_plan[0]
    calls = []
    for at, instruction in enumerate(plan.chains[0].instructions):
        if isinstance(instruction.instr_args, KernelCall):
            values = [plan.values[argument].val for argument in instruction.instr_args.args]
            sizes = tuple(tuple(value.sizes) for value in values if hasattr(value, "sizes"))
            calls.append(OperatorCall(at, plan.operators[instruction.instr_args.op_index].name, sizes))
    return calls


def _to_program(graph: fx.GraphModule, example: tuple[Tensor, ...], dynamic_shapes: tuple[Any, ...]) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExecuTorch marks its own modules as experimental on import
        from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge  # type: ignore[import-untyped]
        from executorch.exir.passes import MemoryPlanningPass  # type: ignore[import-untyped]
        from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass  # type: ignore[import-untyped]

        exported = torch.export.export(graph, example, dynamic_shapes=dynamic_shapes, strict=False)
        edge = to_edge(
            exported, compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
        )
        config = ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False),
            sym_shape_eval_pass=ConstraintBasedSymShapeEvalPass(),
        )
        return bytes(edge.to_executorch(config).buffer)
