"""A loss of a user's own, by the name of its file: found, checked, and refused in words that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.extractors import build_extractor
from ondevice.model.named_code import UnusableCode
from ondevice.model.objectives import build_objective, check_objective
from ondevice.model.objectives.sampled_softmax import SampledSoftmax
from ondevice.model.train_step import TrainStep

FILE = """
from dataclasses import replace
from ondevice.model.objectives.sampled_softmax import SampledSoftmax

class Twice(SampledSoftmax):
    def losses(self, embeddings, arrays):
        return 2 * super().losses(embeddings, arrays)

class Column(SampledSoftmax):
    def losses(self, embeddings, arrays):
        return super().losses(embeddings, arrays)[:, None]

class WithFeature(SampledSoftmax):
    def inputs(self):
        return (*super().inputs(), replace(super().inputs()[-1], role="feature", positions_in=None))

class WithoutLosses:
    def __init__(self, spec): pass
    def inputs(self): return ()

def no_arguments(): return None
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(FILE)
    return f"{tmp_path}/own.py"


def spec_of(objective: str) -> StepSpec:
    return StepSpec("two_convolutions", 4, (1, 8, 8), objective=objective)


def losses_of(objective: str) -> torch.Tensor:
    spec = spec_of(objective)
    step = TrainStep(spec, build_extractor(spec))
    rows = torch.eye(5, 4)
    arrays = {
        "columns": rows,
        "adjust": torch.zeros(5),
        "labels": torch.tensor([0, 3]),
        "example_weight": torch.tensor([0.5, 0.5]),
    }
    return step.loss(torch.ones(2, 4), arrays)


def test_the_loss_of_a_file_is_the_steps(own: str) -> None:
    assert losses_of(f"{own}:Twice") == 2 * losses_of("sampled_softmax")


def test_one_of_a_package_too() -> None:
    name = f"{SampledSoftmax.__module__}:SampledSoftmax"
    assert type(build_objective(spec_of(name))) is SampledSoftmax


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("softmax", "expected one of sampled_softmax, next_word, .*or another's: package.module:NAME"),
        ("nowhere/own.py:Loss", "there is no file nowhere/own.py"),
        (":Loss", "expected package.module:NAME"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_is_imported(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_objective(name)


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("Twize", "has no function 'Twize'; did you mean Twice"),
        ("no_arguments", "cannot be a loss: no_arguments.. takes 0 positional arguments"),
        ("WithoutLosses", "cannot be a loss: .*no attribute 'losses'; expected a class"),
        ("WithFeature", "input 'labels' has the role feature; expected tables, side arrays and labels"),
        ("Column", r"gives \[2, 1\] for 2 examples; expected a loss per example, \[b\]"),
    ],
)
def test_what_cannot_be_a_loss_says_why(own: str, attribute: str, words: str) -> None:
    with pytest.raises(UnusableCode, match=words):
        losses_of(f"{own}:{attribute}")
