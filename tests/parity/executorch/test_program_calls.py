"""The table of calls beside an exported program: every operator has a layer, every tensor a place and a lifetime."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from helpers.artifacts.runtime_artifact import bounds_of
from torch import nn

from export.executorch.lowering import StepProgram, lower_step, planned_memory
from export.executorch.pixels import fuse_pixels
from export.executorch.recompute import recompute
from export.executorch.rules.planes import rewrite
from export.layers import OUTSIDE, label_of
from export.trace import trace_step
from ondevice.contract.artifacts.program_calls import program_calls_from_bytes
from ondevice.contract.step_signature import rows_of
from ondevice.contract.vocabulary import COLUMNS, StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.train_step import TrainStep

SPEC = StepSpec("mobilenet_v3_small", 16, (3, 32, 32))


@pytest.fixture(scope="module")
def step() -> TrainStep:
    return TrainStep(SPEC, build_extractor(SPEC))


@pytest.fixture(scope="module")
def program(step: TrainStep) -> StepProgram:
    return lower_step(step, bounds_of(step.signature))


def test_a_traced_operator_belongs_to_the_module_that_wrote_it_or_whose_gradient_it_is(
    step: TrainStep,
) -> None:
    nodes = [node for node in trace_step(step, 2).graph.nodes if node.op == "call_function"]
    labels = {node: label_of(node) for node in nodes}
    modules = {name for name, _ in step.extractor.named_modules()} | {OUTSIDE, "extractor"}
    assert {label[0] for label in labels.values() if label} <= modules
    assert None not in labels.values()
    convolutions = [name for name, module in step.extractor.named_modules() if isinstance(module, nn.Conv2d)]
    forward = [labels[node] for node in nodes if node.target is torch.ops.aten.convolution.default]
    backward = [labels[node] for node in nodes if node.target is torch.ops.aten.convolution_backward.default]
    assert forward == [(name, False) for name in convolutions]
    assert backward == [(name, True) for name in reversed(convolutions)]


@pytest.mark.slow
def test_every_operator_of_the_program_has_a_layer(step: TrainStep, program: StepProgram) -> None:
    modules = {name for name, _ in step.extractor.named_modules()} | {OUTSIDE, "extractor"}
    calls = program.calls.calls
    assert {call.layer for call in calls} <= modules
    with_weights = {name.rpartition(".")[0] for name, _ in step.extractor.named_parameters()}
    for backward in (False, True):
        assert with_weights <= {call.layer for call in calls if call.backward == backward}
    (loss,) = [at for at in range(1, len(calls)) if calls[at].backward and not calls[at - 1].backward]
    assert all(call.backward for call in calls[loss:])
    assert rows_of(COLUMNS) in {size for call in calls for shape in call.shapes for size in shape}


@pytest.mark.slow
def test_the_tensors_fill_the_planners_arena_and_never_overlap(program: StepProgram) -> None:
    tensors = program.calls.tensors
    assert max(tensor.offset + tensor.num_bytes for tensor in tensors) == program.calls.arena_bytes
    assert program.calls.arena_bytes == planned_memory(program.data)
    for at, one in enumerate(tensors):
        for other in tensors[:at]:
            apart = one.offset + one.num_bytes <= other.offset or other.offset + other.num_bytes <= one.offset
            assert apart or one.last < other.first or other.last < one.first


@pytest.mark.slow
def test_the_table_is_read_as_it_was_written_and_nothing_else_is(
    step: TrainStep, program: StepProgram
) -> None:
    bounds = bounds_of(step.signature)
    assert program_calls_from_bytes(program.calls.to_bytes(), bounds) == program.calls
    damages: list[tuple[Any, str]] = [
        (lambda table: table.pop("arena_bytes"), "has no arena_bytes"),
        (lambda table: table.update(more=1), "unknown field 'more'"),
        (lambda table: table["calls"][3].update(layer="[red]"), "expected 1 to 200 printable characters"),
        (lambda table: table["calls"][3].update(shapes=[["rows:elsewhere"]]), "expected a whole number"),
        (lambda table: table["calls"].reverse(), "not in the order"),
        (lambda table: table["tensors"][0].update(last=10**6), "expected some of the"),
        (lambda table: table["tensors"][0].update(offset=10**12), "outside the arena"),
    ]
    for damage, words in damages:
        table = json.loads(program.calls.to_bytes())
        damage(table)
        with pytest.raises(ValueError, match=words):
            program_calls_from_bytes(json.dumps(table).encode(), bounds)
    with pytest.raises(ValueError, match="nested too deeply"):
        program_calls_from_bytes(b"[" * 100_000, bounds)


@pytest.mark.slow
def test_large_cheap_activations_are_computed_again_and_not_kept() -> None:
    """At 128 px the first expansion of MobileNetV3-Large takes 4 MB of four examples; nothing else is cheap enough."""
    spec = StepSpec("mobilenet_v3_large", 16, (3, 128, 128))
    step = TrainStep(spec, build_extractor(spec))
    traced = rewrite(fuse_pixels(trace_step(step, 4)))
    kept = {node.name for node in traced.graph.nodes}
    again = [node for node in recompute(traced).graph.nodes if node.name not in kept]
    assert [(node.target, label_of(node)) for node in again] == [
        (torch.ops.fedss.pointwise.default, ("blocks.1.expand.conv", True)),
        (torch.ops.fedss.pixels.default, ("pixels", True)),
    ]
    for node in again:
        first = next(
            each for each in traced.graph.nodes if each.target is node.target and each.args == node.args
        )
        assert first is not node
        assert not any((label_of(user) or ("", False))[1] for user in first.users)
