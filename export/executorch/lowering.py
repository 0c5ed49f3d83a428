"""The training step as an ExecuTorch program: one .pte for every width up to a maximum, weights in, gradients out.

`export.trace` gives the joint forward and backward graph, `export.executorch.rules.planes` rewrites it to the operators of
`ondevice/native`, `recompute` lets go of what is cheap to compute again, and ExecuTorch serialises it with a memory plan
of ours.  The number of a table's rows is dynamic and memory is
planned for its bound; the micro-batch is static, since a dynamic batch is specialised away by torch.export.  Pure: bytes
come back.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

import export.executorch.operators  # noqa: F401  # declares the operators
from export.executorch.calls import read_calls
from export.executorch.load_check import check_loads
from export.executorch.memory_plan import planning_algorithms
from export.executorch.pixels import fuse_pixels
from export.executorch.recompute import recompute
from export.executorch.rules.planes import rewrite
from export.trace import example_array, trace_embed, trace_step
from export.unsupported_operator import UnsupportedOperator
from ondevice.contract.artifacts.program_calls import ProgramCalls
from ondevice.contract.step_signature import EXAMPLES, ArraySpec, Bounds, rows_of
from ondevice.model.train_step import TrainStep

DynamicShapes = tuple[dict[int, torch.export.Dim] | None, ...]
"""For every input, which of its dimensions vary."""


@dataclass(frozen=True)
class StepProgram:
    """step.pte, and what it does."""

    data: bytes
    calls: ProgramCalls


def lower_step(step: TrainStep, bounds: Bounds) -> StepProgram:
    """The step's signature for a micro-batch of examples and 1 to the bound of every table's rows."""
    tables = {rows_of(table): bounds[rows_of(table)] for table in step.signature.table_dims}
    for symbol, most in tables.items():
        if most < 2:
            raise ValueError(
                f"the bound of {symbol} is {most}; expected 2 or more: one row alone has nothing to learn from"
            )
    example, dynamic = _examples(step.signature.inputs, bounds)
    graph = recompute(rewrite(fuse_pixels(trace_step(step, bounds[EXAMPLES]))))
    program = _emitted(graph, example, dynamic)
    plan = program.executorch_program.execution_plan[0]
    calls = read_calls(program.exported_program(), plan, step.signature, bounds)
    data = bytes(program.buffer)
    check_loads(data, calls)
    return StepProgram(data, calls)


def lower_embed(step: TrainStep, bounds: Bounds) -> bytes:
    """embed.pte: dense parameters and what the extractor takes of a micro-batch -> embeddings."""
    example, dynamic = _examples((*step.signature.dense, *step.signature.embedded), bounds)
    graph = rewrite(fuse_pixels(trace_embed(step, bounds[EXAMPLES])))
    program = _to_program(graph, example, dynamic)
    check_loads(program)
    return program


def _examples(specs: Sequence[ArraySpec], bounds: Bounds) -> tuple[tuple[Tensor, ...], DynamicShapes]:
    """Arrays of the largest sizes, and which of their sizes vary: those of tables' rows."""
    symbols = sorted({symbol for spec in specs for symbol in spec.symbols} - {EXAMPLES})
    dims = {
        symbol: torch.export.Dim(f"rows_{at}", min=1, max=bounds[symbol]) for at, symbol in enumerate(symbols)
    }
    dynamic = tuple(
        {at: dims[size] for at, size in enumerate(spec.shape) if isinstance(size, str) and size in dims}
        or None
        for spec in specs
    )
    return tuple(example_array(spec, bounds) for spec in specs), dynamic


def planned_memory(program: bytes) -> int:
    """Bytes of the arena that a program asks for: activations and their gradients; inputs and outputs are the caller's."""
    from executorch.exir._serialize import _program

    plan = _program.deserialize_pte_binary(program).program.execution_plan[0]
    return sum(plan.non_const_buffer_sizes)


def _to_program(graph: fx.GraphModule, example: tuple[Tensor, ...], dynamic_shapes: DynamicShapes) -> bytes:
    return bytes(_emitted(graph, example, dynamic_shapes).buffer)


def _emitted(graph: fx.GraphModule, example: tuple[Tensor, ...], dynamic_shapes: DynamicShapes) -> Any:
    """ExecuTorch's own `ExecutorchProgramManager`, which comes without type information."""
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
            memory_planning_pass=MemoryPlanningPass(
                planning_algorithms(), alloc_graph_input=False, alloc_graph_output=False
            ),
            sym_shape_eval_pass=ConstraintBasedSymShapeEvalPass(),
        )
        try:
            return edge.to_executorch(config)
        except RuntimeError as error:
            if "Missing out variants" not in str(error):
                raise
            raise UnsupportedOperator(
                f"executorch cannot call some operators ({error}); "
                "write the layers that need them in other operators, or export for onnxruntime"
            ) from None
