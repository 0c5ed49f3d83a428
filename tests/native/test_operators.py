"""The operators of `ondevice/native` refuse arguments that do not fit each other, when exported and when run."""

from __future__ import annotations

import operator as operator_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import fx

import export.executorch.operators  # noqa: F401  # declares the operators
from export.executorch.lowering import _to_program
from ondevice.native.runtime.program import Program, ProgramError

Size = tuple[int, ...]
PLANES, VECTOR, CHANNELS = (4, 2, 6, 6), (2, 4), (4,)
VALUE = (PLANES, (2, 2, 2), CHANNELS, CHANNELS, 1)
FITTING: dict[str, tuple[Size | int | float | None, ...]] = {
    "product": ((3, 4), (4, 5), False, False, (5,)),
    "pointwise": (PLANES, (6, 4, 1, 1), (6,)),
    "pointwise_input_gradient": (PLANES, (4, 6, 1, 1), (6, 2, 6, 6)),
    "pointwise_weight_gradient": (PLANES, (6, 2, 6, 6)),
    "pointwise_value": (*VALUE, VECTOR, (6, 4, 1, 1), (6,)),
    "pointwise_value_weight_gradient": ((6, 2, 6, 6), *VALUE, VECTOR),
    "convolution": (PLANES, (6, 4, 3, 3), (6,), 2, 1, False),
    "convolution_input_gradient": ((6, 2, 3, 3), (6, 4, 3, 3), 2, 1, 6, 6),
    "convolution_weight_gradient": ((6, 2, 3, 3), PLANES, 3, 2, 1, False),
    "depthwise": (*VALUE, (4, 1, 3, 3), 2),
    "depthwise_input_gradient": ((4, 2, 3, 3), (4, 1, 3, 3), 2, 6, 6),
    "depthwise_weight_gradient": ((4, 2, 3, 3), *VALUE, 3, 2),
    "group_norm_gradient": (PLANES, VECTOR, VECTOR, *VALUE),
    "materialise": (*VALUE, VECTOR, PLANES),
    "pooled_mean": VALUE,
    "pooled_product": (PLANES, *VALUE),
    "activation_gradient": (PLANES, PLANES, 1),
    "max_pool_gradient": ((4, 2, 3, 3), PLANES, 3, 2, 1),
}


FREE = {
    "product": {(0, 0)},
    "pointwise": {(0, 1), (0, 2), (0, 3)},
    "pointwise_weight_gradient": {(0, 0), (1, 0)},
    "pointwise_value": {(0, 2), (0, 3)},
    "pointwise_value_weight_gradient": {(0, 0)},
    "convolution": {(0, 1), (0, 2), (0, 3)},
    "convolution_input_gradient": {(0, 1), (1, 1)},
    "convolution_weight_gradient": {(0, 0), (1, 0)},
    "depthwise": {(0, 2), (0, 3)},
    "depthwise_input_gradient": {(0, 1)},
    "pooled_mean": {(0, 2), (0, 3)},
}
"""Argument and dimension that only the output depends on."""


def misfits(operator: str) -> dict[tuple[int, int], Size]:
    """One tensor argument at a time, one of its sizes too large by 1, by argument and dimension."""
    return {
        (at, dim): tuple(size + (i == dim) for i, size in enumerate(given))
        for at, given in enumerate(FITTING[operator])
        if isinstance(given, tuple)
        for dim in range(len(given))
    }


@pytest.mark.parametrize("operator", FITTING)
def test_arguments_that_do_not_fit_are_refused_while_the_program_is_written(operator: str) -> None:
    def call(arguments: tuple[Size | int | float | None, ...]) -> None:
        on_meta = (torch.empty(a, device="meta") if isinstance(a, tuple) else a for a in arguments)
        getattr(torch.ops.fedss, operator)(*on_meta)

    call(FITTING[operator])
    arguments = FITTING[operator]
    for (at, dim), sizes in misfits(operator).items():
        if (at, dim) not in FREE.get(operator, ()):
            with pytest.raises(ValueError, match="expected"):
                call((*arguments[:at], sizes, *arguments[at + 1 :]))


def resized(program: bytes, sizes: list[Size]) -> bytes:
    """A program whose inputs were given other sizes after it was written."""
    from executorch.exir._serialize import _program

    file = _program.deserialize_pte_binary(program)
    plan = file.program.execution_plan[0]
    for at, wanted in zip(plan.inputs, sizes, strict=True):
        plan.values[at].val.sizes = list(wanted)
    return bytes(_program.serialize_pte_binary(file))


@pytest.mark.slow
@pytest.mark.parametrize("operator", FITTING)
def test_arguments_that_do_not_fit_are_refused_by_the_runtime(operator: str, tmp_path: Path) -> None:
    arguments = FITTING[operator]
    shapes = [given for given in arguments if isinstance(given, tuple)]
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") if isinstance(a, tuple) else a for i, a in enumerate(arguments)]
    result = graph.call_function(getattr(torch.ops.fedss, operator).default, tuple(nodes))
    several = operator == "group_norm_gradient"
    graph.output(
        [graph.call_function(operator_module.getitem, (result, i)) for i in range(3)] if several else [result]
    )
    example = tuple(torch.zeros(shape) for shape in shapes)
    program = _to_program(fx.GraphModule({}, graph), example, (None,) * len(example))
    on_meta = (torch.empty(a, device="meta") if isinstance(a, tuple) else a for a in arguments)
    outputs = getattr(torch.ops.fedss, operator)(*on_meta)
    room = [np.zeros(tuple(out.shape), np.float32) for out in (outputs if several else [outputs])]

    def run(sizes: list[Size]) -> None:
        path = tmp_path / "operator.pte"
        path.write_bytes(resized(program, sizes))
        Program(path).run([np.ones(size, np.float32) for size in sizes], room)

    run(shapes)
    places = [at for at, given in enumerate(arguments) if isinstance(given, tuple)]
    for (at, dim), sizes in misfits(operator).items():
        if operator == "pooled_mean" and (at, dim) in FREE[operator]:
            continue  # means of larger planes are as many; elsewhere such a size makes another output, for which is no room
        with pytest.raises(ProgramError, match="ExecuTorch error 18"):
            run([sizes if place == at else shape for place, shape in zip(places, shapes, strict=True)])


def test_an_id_outside_the_table_is_refused_by_the_runtime(tmp_path: Path) -> None:
    graph = fx.Graph()
    gradient, ids = graph.placeholder("gradient"), graph.placeholder("ids")
    graph.output([graph.call_function(torch.ops.fedss.embedding_gradient.default, (gradient, ids, 5, -1))])
    example = (torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    path = tmp_path / "operator.pte"
    path.write_bytes(_to_program(fx.GraphModule({}, graph), example, (None, None)))
    program, out = Program(path), np.full((5, 4), np.nan, np.float32)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    program.run([rows, np.array([4, 0, 4])], [out])
    np.testing.assert_array_equal(out, [rows[1], *np.zeros((3, 4)), rows[0] + rows[2]])
    for outside in (5, -1):
        with pytest.raises(ProgramError, match="ExecuTorch error 18"):
            program.run([rows, np.array([0, outside, 1])], [out])
