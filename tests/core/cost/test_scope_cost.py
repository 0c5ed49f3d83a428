"""What a scope costs: figures that can be counted by hand, and that shrink as less learns."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from export.cost.scope import explain_scope, scope_cost
from ondevice.contract.step_signature import EXAMPLES, rows_of
from ondevice.contract.vocabulary import COLUMNS, StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.extractors.foreign import give
from ondevice.model.train_step import TrainStep

BOUNDS = {EXAMPLES: 2, rows_of(COLUMNS): 5}


def step_of(train: str, spec: StepSpec) -> TrainStep:
    chosen = replace(spec, train=train)
    return TrainStep(chosen, build_extractor(chosen))


def test_multiply_adds_are_those_of_products_and_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 1))
    spec = StepSpec(give(model), 4, (3, 8, 8))
    first, second = 2 * 16 * 8 * 27, 2 * 16 * 6 * 8
    embedding, logits = 2 * 6 * 4, 2 * 4 * 5
    # The gradient of the images is nobody's; every other product has two.
    everything = 2 * first + 3 * (second + embedding + logits)
    assert scope_cost(step_of("all", spec), BOUNDS).multiply_adds == everything
    head = first + second + embedding + 2 * logits
    assert scope_cost(step_of("head", spec), BOUNDS).multiply_adds == head


def test_less_learns_for_less() -> None:
    spec = StepSpec("mobilenet_v3_small", 8, (3, 32, 32))
    costs = {
        train: scope_cost(step_of(train, spec), BOUNDS)
        for train in ("all", "last-blocks 3", "lora:4", "last-two")
    }
    assert costs["all"].parameters == sum(p.numel() for p in build_extractor(spec).parameters())
    for train, cost in costs.items():
        if train != "all":
            assert cost.parameters < costs["all"].parameters
            assert cost.multiply_adds < costs["all"].multiply_adds
    for train in ("last-blocks 3", "last-two"):
        assert costs[train].activation_bytes < 0.7 * costs["all"].activation_bytes
    assert explain_scope(step_of("all", spec), BOUNDS) is None
    sentence = explain_scope(step_of("lora:4", spec), BOUNDS)
    assert sentence is not None
    assert f"({costs['all'].parameters:,} with all)" in sentence
