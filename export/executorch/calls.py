"""What a lowered program does, call by call, read from the graph that it was emitted from: the table beside `step.pte`.

Every operator of that graph is one instruction of the program, in the same order, but for views whose place is planned,
which are none; that it is so is checked by name.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from export.layers import OUTSIDE, label_of
from ondevice.contract.artifacts.program_calls import OperatorCall, PlannedTensor, ProgramCalls
from ondevice.contract.step_signature import Bounds, StepSignature


def read_calls(
    exported: ExportedProgram, plan: Any, signature: StepSignature, bounds: Bounds
) -> ProgramCalls:
    """`plan`: ExecuTorch's execution plan of that program, which comes without type information."""
    from executorch.exir import memory
    from executorch.exir.schema import KernelCall

    nodes = list(exported.graph.nodes)
    silent = (memory.alloc, operator.getitem)
    called = [
        at
        for at, node in enumerate(nodes)
        if node.op == "call_function"
        and node.target not in silent
        and not (node.target is memory.view and _is_planned(node.meta["spec"]))
    ]
    kernels = [
        (at, plan.operators[instruction.instr_args.op_index])
        for at, instruction in enumerate(plan.chains[0].instructions)
        if isinstance(instruction.instr_args, KernelCall)
    ]
    symbols = _symbols(exported, signature)
    calls: list[OperatorCall] = []
    for place, (instruction, kernel) in zip(called, kernels, strict=True):
        node, name = nodes[place], f"{kernel.name}.{kernel.overload}" if kernel.overload else kernel.name
        expected = "executorch_prim::et_view" if node.target is memory.view else _operator_name(node.target)
        assert kernel.name == expected, f"instruction {instruction} is {name}; the graph has {expected}"
        layer, backward = label_of(node) or (OUTSIDE, calls[-1].backward if calls else False)
        shapes = tuple(_shape(tensor, symbols, bounds) for tensor in _tensors(node))
        calls.append(OperatorCall(instruction, name, layer, backward, shapes))
    tensors = tuple(_planned(nodes, called))
    return ProgramCalls(tuple(calls), tensors, sum(plan.non_const_buffer_sizes))


def _operator_name(target: Any) -> str:
    return str(target._schema.name)


def _is_planned(spec: Any) -> bool:
    return bool(spec.is_static_shape_tensor) and spec.mem_offset is not None


def _planned(nodes: list[fx.Node], called: list[int]) -> Iterator[PlannedTensor]:
    """What lies in the arena, once: a view lies where its base does and lives as long."""
    seen = set()
    for node in nodes:
        specs = node.meta.get("spec")
        for spec in _parts(specs):
            if getattr(spec, "mem_offset", None) is None:
                continue
            begin, end = spec.lifetime
            place = (spec.mem_offset, begin, end)
            if place in seen:
                continue
            seen.add(place)
            living = [call for call, at in enumerate(called) if begin <= at <= end]
            if living:
                yield PlannedTensor(spec.allocated_memory, spec.mem_offset, living[0], living[-1])


def _tensors(node: fx.Node) -> Iterator[torch.Tensor]:
    """What the operator takes and gives, outputs last, as they stand among its arguments."""
    given: list[fx.Node] = []
    fx.map_arg((node.args, dict(node.kwargs)), given.append)
    if not any(name.startswith("out") for name in node.kwargs):  # a view: nothing is given to it to write to
        given.append(node)
    for each in given:
        value = each.meta.get("val")
        if value is None and each.meta.get("spec") is not None:
            value = each.meta["spec"]
        yield from (part for part in _parts(value) if hasattr(part, "shape"))


def _parts(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _symbols(exported: ExportedProgram, signature: StepSignature) -> Mapping[str, str]:
    """torch's name of a size that varies -> the signature's."""
    inputs = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    symbols = {}
    for spec, name in zip(signature, exported.graph_signature.user_inputs, strict=True):
        for size, traced in zip(spec.shape, inputs[str(name)].meta["val"].shape, strict=True):
            if isinstance(size, str) and isinstance(traced, torch.SymInt):
                symbols[str(traced)] = size
    return symbols


def _shape(tensor: Any, symbols: Mapping[str, str], bounds: Bounds) -> tuple[int | str, ...]:
    return tuple(_size(size, symbols, bounds) for size in tensor.shape)


def _size(size: int | torch.SymInt, symbols: Mapping[str, str], bounds: Bounds) -> int | str:
    """A size that is computed from one that varies is taken at the bound."""
    if isinstance(size, int):
        return size
    if str(size) in symbols:
        return symbols[str(size)]
    expression = size.node.expr
    at_bounds = {free: bounds[symbols[str(free)]] for free in expression.free_symbols}
    return int(expression.subs(at_bounds))
