"""What a program consists of, read from its bytes: operators, and the memory that it plans for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def operators(files: Mapping[str, bytes]) -> dict[str, dict[str, int]]:
    """Per program, how often each operator occurs, the most frequent first."""
    counters = {".onnx": _onnx_operators, ".pte": _executorch_operators}
    return {
        name: dict(count(data).most_common())
        for name, data in files.items()
        for suffix, count in counters.items()
        if name.endswith(suffix)
    }


def planned_bytes(files: Mapping[str, bytes]) -> int | None:
    """The arena of a runtime's step, or None for a runtime that plans when it runs."""
    for name in ("step.pte", "stock_step.pte"):
        if name in files:
            from export.executorch.lowering import planned_memory

            return planned_memory(files[name])
    return None


def _onnx_operators(data: bytes) -> Counter[str]:
    import onnx

    nodes = onnx.load_from_string(data).graph.node
    return Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes)


def _executorch_operators(data: bytes) -> Counter[str]:
    # ExecuTorch's exporter ships without type information.
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.schema import KernelCall

    plan = deserialize_pte_binary(data).program.execution_plan[0]
    instructions = (instruction.instr_args for chain in plan.chains for instruction in chain.instructions)
    return Counter(
        plan.operators[call.op_index].name for call in instructions if isinstance(call, KernelCall)
    )
