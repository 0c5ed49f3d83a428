"""The training step as an ExecuTorch program: one .pte for every width up to a maximum, weights in, gradients out.

`export.trace` gives the joint forward and backward graph, `export.executorch.rules.planes` rewrites it to the operators of
`ondevice/native`, and ExecuTorch plans its memory and serialises it.  The number of a table's rows is dynamic and memory is
planned for its bound; the micro-batch is static, since a dynamic batch is specialised away by torch.export.  Pure: bytes
come back.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, fx

import export.executorch.operators  # noqa: F401  # declares the operators
from export.executorch.pixels import fuse_pixels
from export.executorch.rules.planes import rewrite
from export.trace import example_array, trace_embed, trace_step
from ondevice.contract.step_signature import EXAMPLES, Bounds, rows_of
from ondevice.model.train_step import TrainStep


def lower_step(step: TrainStep, bounds: Bounds) -> bytes:
    """step.pte: the step's signature for a micro-batch of examples and 1 to the bound of every table's rows."""
    tables = {rows_of(table): bounds[rows_of(table)] for table in step.signature.table_dims}
    for symbol, most in tables.items():
        if most < 2:
            raise ValueError(
                f"the bound of {symbol} is {most}; expected 2 or more: one row alone has nothing to learn from"
            )
    dims = {
        symbol: torch.export.Dim(f"rows_{at}", min=1, max=most)
        for at, (symbol, most) in enumerate(tables.items())
    }
    dynamic = [
        {at: dims[size] for at, size in enumerate(spec.shape) if size in dims} or None
        for spec in step.signature
    ]
    example = tuple(example_array(spec, bounds) for spec in step.signature)
    return _to_program(rewrite(fuse_pixels(trace_step(step, bounds[EXAMPLES]))), example, tuple(dynamic))


def lower_embed(step: TrainStep, bounds: Bounds) -> bytes:
    """embed.pte: dense parameters and the features of a micro-batch -> embeddings."""
    example = tuple(example_array(spec, bounds) for spec in step.signature.of_role("dense", "feature"))
    return _to_program(
        rewrite(fuse_pixels(trace_embed(step, bounds[EXAMPLES]))), example, (None,) * len(example)
    )


def planned_memory(program: bytes) -> int:
    """Bytes of the arena that a program asks for: activations and their gradients; inputs and outputs are the caller's."""
    from executorch.exir._serialize import _program

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
    from executorch.exir.schema import KernelCall

    plan = _program.deserialize_pte_binary(program).program.execution_plan[0]
    calls = []
    for at, instruction in enumerate(plan.chains[0].instructions):
        if isinstance(instruction.instr_args, KernelCall):
            values = [plan.values[argument].val for argument in instruction.instr_args.args]
            sizes = tuple(tuple(value.sizes) for value in values if hasattr(value, "sizes"))
            calls.append(OperatorCall(at, plan.operators[instruction.instr_args.op_index].name, sizes))
    return calls


def _to_program(
    graph: fx.GraphModule,
    example: tuple[Tensor, ...],
    dynamic_shapes: tuple[dict[int, torch.export.Dim] | None, ...],
) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExecuTorch marks its own modules as experimental on import
        from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
        from executorch.exir.passes import MemoryPlanningPass
        from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass

        exported = torch.export.export(graph, example, dynamic_shapes=dynamic_shapes, strict=False)
        edge = to_edge(
            exported, compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
        )
        config = ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False),
            sym_shape_eval_pass=ConstraintBasedSymShapeEvalPass(),
        )
        return bytes(edge.to_executorch(config).buffer)
