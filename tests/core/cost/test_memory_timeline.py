"""What a step holds in memory while it runs: by hand, and as `fedss inspect --memory` shows it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import typer
from helpers.artifacts.runtime_artifact import make_artifact
from helpers.artifacts.tiny_artifact import SPEC, make_tiny_artifact
from rich.console import Console
from typer.testing import CliRunner, Result

import fedss.commands.inspect
from export.cost.timeline import memory_timeline
from export.executorch.lowering import planned_memory
from export.executorch.memory_plan import place
from fedss.commands.memory_tables import memory_tables, sparkline
from ondevice.contract.artifact import ArtifactError
from ondevice.contract.artifacts.program_calls import OperatorCall, PlannedTensor, ProgramCalls
from ondevice.contract.step_signature import ArraySpec, StepSignature

SIGNATURE = StepSignature(
    (
        ArraySpec("weight", "dense", (10,)),
        ArraySpec("images", "feature", ("b", 3), "uint8"),
        ArraySpec("example_weight", "example_weight", ("b",)),
    )
)


def calls(*layers: str) -> tuple[OperatorCall, ...]:
    """Forward through the layers, and back."""
    forward = [(layer, False) for layer in layers]
    backward = [(layer, True) for layer in reversed(layers)]
    return tuple(
        OperatorCall(at, "fedss::any.out", layer, direction, ())
        for at, (layer, direction) in enumerate(forward + backward)
    )


TABLE = ProgramCalls(
    calls("stem", "last"),
    tensors=(PlannedTensor(100, 0, 0, 3), PlannedTensor(30, 100, 1, 2), PlannedTensor(50, 130, 2, 3)),
    arena_bytes=184,
)


def test_activations_are_what_the_backward_pass_needs_of_the_forward_pass() -> None:
    timeline = memory_timeline(TABLE, SIGNATURE, {"b": 4})
    assert timeline.activations == (100, 130, 130, 100)
    assert timeline.temporaries == (0, 0, 50, 50)
    assert (timeline.peak_call, timeline.planned_peak) == (2, 180)
    assert [(each.num_bytes, each.layer, each.kept) for each in timeline.at_peak] == [
        (100, "stem", True),
        (50, "last", False),
        (30, "last", True),
    ]
    assert (timeline.weights, timeline.gradients, timeline.examples) == (40, 40, 12 + 16)
    assert timeline.total == 40 + 40 + 28 + 184


def test_the_table_names_the_peak_and_draws_the_step() -> None:
    shown = StringIO()
    Console(file=shown, width=100).print(memory_tables(memory_timeline(TABLE, SIGNATURE, {"b": 4})))
    words = " ".join(shown.getvalue().split())
    assert "at call 3 of 4, fedss::any.out of last" in words
    assert "▅▆█▇" in words


def test_a_sparkline_shows_the_largest_of_every_stretch() -> None:
    assert sparkline([1, 2, 4, 8, 8, 0], 3) == "▂██"
    assert sparkline([0, 8], 10) == " █"


@pytest.mark.parametrize("seed", range(5))
def test_what_lives_at_the_same_time_never_overlaps(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 60
    starts = random.integers(0, 100, count)
    lifetimes = [(int(start), int(start + random.integers(0, 60))) for start in starts]
    sizes = [int(size) for size in random.integers(1, 1000, count)]
    offsets = place(lifetimes, sizes)
    for one in range(count):
        for other in range(one):
            together = lifetimes[one][0] <= lifetimes[other][1] and lifetimes[other][0] <= lifetimes[one][1]
            apart = (
                offsets[one] + sizes[one] <= offsets[other] or offsets[other] + sizes[other] <= offsets[one]
            )
            assert apart or not together


def test_a_step_that_keeps_and_releases_like_a_stack_wastes_nothing() -> None:
    """Forward outputs live until their own backward call, and every call has a temporary of its own."""
    layers, sizes = 8, [700, 30, 500, 90, 10, 400, 60, 20]
    lifetimes = [(at, 2 * layers - 1 - at) for at in range(layers)] + [(at, at) for at in range(2 * layers)]
    every = [*sizes, *(50 + 7 * at for at in range(2 * layers))]
    alive = [
        sum(size for (first, last), size in zip(lifetimes, every, strict=True) if first <= at <= last)
        for at in range(2 * layers)
    ]
    ends = [offset + size for offset, size in zip(place(lifetimes, every), every, strict=True)]
    assert max(ends) == max(alive)


def run_inspect(folder: Path, *options: str) -> Result:
    app = typer.Typer()
    app.command()(fedss.commands.inspect.command)
    return CliRunner().invoke(app, [str(folder), "--width", "20", "--memory", *options])


@pytest.mark.slow
def test_inspect_prints_a_timeline_that_fits_the_programs_own_arena(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "artifact", SPEC, "executorch")
    result = run_inspect(artifact.directory, "--json")
    assert result.exception is None, result.output
    timeline = json.loads(result.stdout)["memory_timeline"]
    alive = [call["activations"] + call["temporaries"] for call in timeline["calls"]]
    assert max(alive) == timeline["planned_peak"] == sum(each["bytes"] for each in timeline["at_peak"])
    assert timeline["arena"] == planned_memory(artifact.path("step.pte").read_bytes())
    assert timeline["planned_peak"] <= timeline["arena"]
    shown = run_inspect(artifact.directory)
    assert "alive at the peak" in shown.stdout


def test_an_artifact_that_has_no_plan_is_told_so(tmp_path: Path) -> None:
    make_tiny_artifact(tmp_path / "artifact")
    result = run_inspect(tmp_path / "artifact")
    assert isinstance(result.exception, ArtifactError)
    assert "export it again, for executorch" in str(result.exception)
