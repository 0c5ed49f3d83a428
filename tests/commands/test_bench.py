"""`fedss bench` measures what it says it does."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import typer
from helpers.artifacts.runtime_artifact import make_artifact
from helpers.artifacts.tiny_artifact import SPEC, make_tiny_artifact
from helpers.native.arm_programs import CACHE
from typer.testing import CliRunner, Result

import fedss.commands.bench
from android_harness.measuring.measurement import (
    BenchSize,
    ContendersDisagree,
    check_losses,
    measure_side_by_side,
    ratio_over_turns,
)
from fedss.console import UsageError
from ondevice.contract.artifact import Artifact, ArtifactError
from ondevice.tools.step_process import StepTime

ROW_KEYS = [
    "runtime",
    "batch",
    "micro_batch",
    "image_size",
    "width",
    "threads",
    "cpu_ms_p50",
    "cpu_ms_p90",
    "wall_ms_p50",
    "wall_ms_p90",
    "ratio_to_eager",
    "peak_mb",
    "load_ms",
    "swap_ms",
    "instructions_per_step",
    "energy_mj_per_step",
    "temperature_celsius",
    "frequency_mhz",
    "bytes_down",
    "bytes_up",
    "device",
    "emulated",
    "versions",
    "artifact_sha256",
]


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return make_tiny_artifact(tmp_path / "artifact")


def run_bench(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(fedss.commands.bench.command)
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.slow
def test_rows_have_the_promised_keys_and_accumulate(artifact: Artifact, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    arguments = [
        str(artifact.directory),
        "--widths",
        "3,5",
        "--batch",
        "6",
        "--steps",
        "2",
        "--out",
        str(out),
        "--json",
    ]
    for runs in (1, 2):
        result = run_bench(*arguments)
        assert result.exception is None, result.output
        answer = json.loads(result.stdout)
        assert [list(row) for row in answer["rows"]] == [ROW_KEYS] * 4
        lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        assert len(lines) == 4 * runs
    assert answer["artifact_sha256"] == artifact.sha256
    assert answer["device"]["name"] == "host"
    assert {"device", "versions", "artifact_sha256", "commit", "time"} < set(lines[0])
    pictures = list(out.glob("bench-1-*.png"))
    assert pictures
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    eager = answer["rows"][0]
    assert (eager["runtime"], eager["width"], eager["batch"], eager["micro_batch"]) == ("eager", 3, 6, 6)
    assert eager["ratio_to_eager"] == 1.0


@pytest.mark.slow
def test_the_table_names_every_contender_in_eighty_columns(artifact: Artifact, tmp_path: Path) -> None:
    result = run_bench(str(artifact.directory), "--steps", "1", "--widths", "3", "--out", str(tmp_path))
    assert result.exception is None, result.output
    assert "eager-channels-last" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.slow
def test_contenders_are_stepped_in_turn(artifact: Artifact) -> None:
    """One call of `advance` a turn of all, warm-up included."""
    turns: list[float] = []
    rows = measure_side_by_side(
        artifact,
        ["eager", "eager-channels-last"],
        BenchSize(2, min(2, artifact.micro_batch), 3, threads=1, warm_up=1, steps=3),
        advance=lambda: turns.append(time.monotonic()),
    )
    assert len(turns) == 4
    assert [row.runtime for row in rows] == ["eager", "eager-channels-last"]
    for row in rows:
        assert (row.cpu_ms_p50 or 0) <= (row.cpu_ms_p90 or 0)
        assert (row.peak_mb or 0) > 50  # each process holds torch


@pytest.mark.slow
def test_the_stock_runtime_is_another_one_and_computes_the_same(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "artifact", SPEC, "onnxruntime")
    arguments = [
        "--runtime",
        "onnxruntime,onnxruntime-stock",
        "--against",
        "none",
        "--batch",
        "2",
        "--widths",
        "3",
    ]
    out = tmp_path / "bench"
    result = run_bench(
        str(artifact.directory), *arguments, "--out", str(out), "--cache", str(CACHE), "--json"
    )
    assert result.exception is None, result.output
    versions = {row["runtime"]: row["versions"] for row in json.loads(result.stdout)["rows"]}
    assert "onnxruntime" not in versions["onnxruntime"]  # the training build has another name
    assert versions["onnxruntime-stock"]["onnxruntime"] == "1.31.1"


def test_a_machine_that_slows_down_halfway_does_not_change_a_ratio() -> None:
    eager = [StepTime(cpu_ms=ms, wall_ms=ms, loss=1.0) for ms in (80.0, 82.0, 81.0, 120.0, 118.0)]
    halved = [StepTime(cpu_ms=taken.cpu_ms / 2, wall_ms=1.0, loss=1.0) for taken in eager]
    assert ratio_over_turns(halved, eager) == 0.5
    assert ratio_over_turns(eager, eager) == 1.0


def test_contenders_that_compute_different_things_are_not_compared() -> None:
    check_losses({"eager": 2.0, "other": 2.0001})
    with pytest.raises(ContendersDisagree, match=r"other computed the loss 2\.1, eager 2\.0"):
        check_losses({"eager": 2.0, "other": 2.1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--widths", "65"], "--widths has 65; .* at most 64 classes"),
        (["--widths", "many"], "--widths is 'many'; expected whole numbers"),
        (["--image-size", "96"], "--image-size is 96, but .* is for 16"),
        (["--runtime", "executorch"], "--runtime names executorch"),
        (["--against", "jax"], "--against names jax; expected some of eager"),
        (["--device", "toaster"], "--device is 'toaster'"),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    arguments: list[str], message: str, artifact: Artifact, tmp_path: Path
) -> None:
    result = run_bench(str(artifact.directory), *arguments, "--out", str(tmp_path / "bench"))
    assert isinstance(result.exception, UsageError)
    assert re.search(message, str(result.exception))
    assert not (tmp_path / "bench").exists()


def test_a_directory_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    assert isinstance(run_bench(str(tmp_path)).exception, ArtifactError)
