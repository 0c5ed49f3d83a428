"""`fedss bench --profile`: every call of a step has a cost and a layer, and together they are the step."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers.artifacts.runtime_artifact import make_artifact
from helpers.artifacts.tiny_artifact import SPEC, make_tiny_artifact
from helpers.native.arm_programs import CACHE, require_programs
from rich.console import Console
from typer.testing import CliRunner, Result

import fedss.commands.bench
from android_harness.devices.device import DeviceError, RunResult
from android_harness.devices.qemu import QEMU_PROGRAMS
from android_harness.measuring.client_profile import costs_from_marks, costs_from_times
from android_harness.measuring.records import MeasurementsUnreadable
from android_harness.measuring.step_profile import StepProfile, read_profiles
from export.cost.work import elements, multiply_adds
from fedss.api.artifacts import program_calls
from fedss.api.reports import write_report
from fedss.commands.profile_tables import profile_tables
from fedss.console import UsageError
from ondevice.contract.artifact import Artifact, ArtifactError
from ondevice.contract.artifacts.program_calls import OperatorCall
from ondevice.model.extractors import build_extractor

SMALL = ["--widths", "9", "--batch", "6", "--warm-up", "1", "--steps", "2", "--json"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_artifact(tmp_path_factory.mktemp("profile") / "artifact", SPEC, "executorch")


def run_bench(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(fedss.commands.bench.command)
    return CliRunner().invoke(app, [*arguments, "--cache", str(CACHE)])


def profiled(artifact: Artifact, out: Path, *options: str) -> tuple[dict[str, Any], StepProfile]:
    """What was printed, and what was written."""
    result = run_bench(str(artifact.directory), "--profile", *SMALL, *options, "--out", str(out))
    assert result.exception is None, result.output
    (profile,) = read_profiles(out / "profile.jsonl")
    return json.loads(result.stdout), profile


def check_profile(artifact: Artifact, printed: dict[str, Any], profile: StepProfile) -> None:
    assert printed["total"] == profile.total
    shares = [row["share"] for row in printed["rows"]]
    assert sum(shares) + printed["outside"] / printed["total"] == pytest.approx(1)
    calls = program_calls(artifact).calls
    assert sum(row.calls for row in profile.rows) == 2 * len(calls)  # six examples in micro-batches of four
    modules = {name for name, _ in build_extractor(SPEC).named_modules()} | {"objective", "extractor"}
    assert {row.layer for row in profile.rows} <= modules
    products = [row for row in profile.rows if row.multiply_adds]
    assert {"conv1", "conv2", "conv3", "embedding", "objective"} <= {row.layer for row in products}
    assert all(0 < (profile.of_peak(row) or 0) <= 1 for row in products)
    assert sum(row.cost for row in profile.by_layer(3)) == pytest.approx(profile.total - profile.outside)


@pytest.mark.slow
def test_on_the_host_the_shares_of_layers_and_operators_add_up_to_the_step(
    artifact: Artifact, tmp_path: Path
) -> None:
    printed, profile = profiled(artifact, tmp_path)
    assert profile.unit == "nanoseconds"
    check_profile(artifact, printed, profile)
    shown = StringIO()
    Console(file=shown, width=80).print(profile_tables(profile, top=3))
    assert "outside operators" in shown.getvalue()
    assert "convolution_weight_gradient" in shown.getvalue()
    page = write_report([tmp_path, artifact.directory], tmp_path / "report.html")
    html = page.path.read_text()
    assert "Where the step goes: executorch on host" in html
    assert "Memory of the step" in html
    assert [picture.name for picture in page.pictures] == ["report-profile-1.png", "report-memory-1.png"]


@pytest.mark.slow
def test_qemu_counts_the_instructions_of_every_call(artifact: Artifact, tmp_path: Path) -> None:
    """They add up to what a step costs by the difference between two runs, but for the marks themselves."""
    require_programs(*QEMU_PROGRAMS, "aarch64-linux-gnu-g++")
    printed, profile = profiled(artifact, tmp_path, "--device", "qemu")
    assert profile.unit == "instructions"
    check_profile(artifact, printed, profile)
    plain = run_bench(str(artifact.directory), *SMALL, "--device", "qemu", "--out", str(tmp_path / "plain"))
    assert plain.exception is None, plain.output
    (row,) = json.loads(plain.stdout)["rows"]
    assert profile.total == pytest.approx(row["instructions_per_step"], rel=0.1)


def test_marks_stand_in_pairs_around_calls() -> None:
    """Three steps of two micro-batches of two calls: 5 and 7 instructions, 1 before each, 3 more between steps."""
    marks, count = [], 100
    for _ in range(3):
        for _ in range(2):
            for cost in (5, 7):
                marks += [count, count + cost]
                count += cost + 1
        count += 3
    costs = costs_from_marks(marks, 2, 2)
    assert costs.calls == (10, 14)
    assert costs.outside == 4 + 3
    with pytest.raises(DeviceError, match="qemu saw 23 marks; expected 24"):
        costs_from_marks(marks[1:], 2, 2)


READY = {"event": "ready", "load_ms": 1.0, "swap_ms": 1.0}
STEP = {"event": "step", "warmup": False, "wall_ms": 1.0, "cpu_ms": 1e-5, "loss": 1.0}
DONE = {"event": "done", "peak_footprint_bytes": 4}


def said(nanoseconds: object, peak: object = 8.0) -> RunResult:
    profile = {
        "event": "profile",
        "nanoseconds": nanoseconds,
        "peak_multiply_adds_per_nanosecond": peak,
    }
    lines = [READY, STEP, STEP, STEP, profile, DONE]
    return RunResult(0, "\n".join(map(json.dumps, lines)), "", 1.0)


def test_times_are_medians_over_the_steps_and_the_rest_is_outside() -> None:
    costs = costs_from_times(said([[1, 0, 4], [3, 0, 4], [2, 0, 4]]), instructions=[0, 2])
    assert costs.calls == (2, 4)
    assert costs.outside == pytest.approx(4)
    assert costs.peak == 8


@pytest.mark.parametrize(
    "answer",
    [
        said([[1, 2]]),
        said("fast"),
        said([[1, 2, 3]] * 3, peak=0),
        said([[1, 2, None]] * 3),
        RunResult(0, "", "", 1.0),
    ],
    ids=["too few", "words", "no peak", "no number", "nothing"],
)
def test_a_client_that_says_something_else_is_refused(answer: RunResult) -> None:
    with pytest.raises(DeviceError, match="not understood"):
        costs_from_times(answer, instructions=[0, 2])


@pytest.mark.parametrize(
    ("operator", "shapes", "expected"),
    [
        ("fedss::pointwise.out", ((16, 4, 7, 7), (24, 16, 1, 1), (24, 4, 7, 7)), 24 * 16 * 4 * 49),
        (
            "fedss::pointwise_weight_gradient.out",
            ((24, 4, 7, 7), (16, 4, 7, 7), (24, 16, 1, 1)),
            24 * 16 * 4 * 49,
        ),
        (
            "fedss::pointwise_input_gradient.out",
            ((24, 4, 7, 7), (24, 16, 1, 1), (16, 4, 7, 7)),
            24 * 16 * 4 * 49,
        ),
        (
            "fedss::depthwise.out",
            ((16, 4, 8, 8), (2, 8, 4), (16,), (16,), (16, 1, 5, 5), (16, 4, 4, 4)),
            16 * 25 * 4 * 16,
        ),
        ("fedss::convolution.out", ((4, 3, 8, 8), (16, 3, 3, 3), (16, 4, 4, 4)), 16 * 27 * 4 * 16),
        ("fedss::product.out", ((4, 64), ("rows:columns", 64), (4, "rows:columns")), 4 * 64 * 9),
        ("fedss::product.out", ((4, "rows:columns"), (4, 64), ("rows:columns", 64)), 4 * 64 * 9),
        ("fedss::group_moments.out", ((16, 4, 7, 7), (2, 8, 4)), 0),
        ("aten::mul.out", ((4, 4), (4, 4), (4, 4)), 0),
    ],
)
def test_multiply_adds_are_weights_times_pixels(
    operator: str, shapes: tuple[tuple[int | str, ...], ...], expected: int
) -> None:
    call = OperatorCall(0, operator, "layer", False, shapes)
    assert multiply_adds(call, {"rows:columns": 9}) == expected
    assert elements(call, {"rows:columns": 9}) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top", "3"], "--top is 3, for the tables of --profile"),
        (["--profile", "--find-max-batch"], "two different measurements"),
        (["--profile", "--against", "eager"], "--against has no meaning with --profile"),
        (["--profile", "--runtime", "onnxruntime"], "--profile is for executorch"),
        (["--profile", "--batch", "4,8"], "--batch is '4,8'; --profile takes one value at a time"),
        (["--profile"], "--profile is for executorch; .* was exported for no runtime"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(options: list[str], message: str, tmp_path: Path) -> None:
    artifact = make_tiny_artifact(tmp_path / "artifact")
    result = run_bench(str(artifact.directory), *options, "--out", str(tmp_path / "bench"))
    assert isinstance(result.exception, UsageError)
    with pytest.raises(UsageError, match=message):
        raise result.exception
    assert not (tmp_path / "bench").exists()


def test_an_artifact_without_a_table_of_calls_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"has no step\.calls\.json.*export it again"):
        program_calls(make_tiny_artifact(tmp_path / "artifact"))


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"unit": "days"}', "not json"])
def test_a_file_that_holds_no_profile_is_refused_by_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    path.write_text(line)
    with pytest.raises(MeasurementsUnreadable, match=r"no profile|is empty"):
        read_profiles(path)
