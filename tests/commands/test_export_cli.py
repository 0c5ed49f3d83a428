"""`fedss export` and `fedss inspect`: what they print, what they refuse, and that a failure leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from helpers.artifacts.tiny_artifact import make_tiny_artifact
from helpers.federations.conversation_case import replace_file
from onnx import numpy_helper
from typer.testing import CliRunner, Result

import export.pipeline
import fedss.commands.bench
import fedss.commands.export
import fedss.commands.inspect
from export.lowering import lower_lengths
from fedss.console import CheckFailed, ExitCode, UsageError
from fedss.errors import exit_code_for
from ondevice.backends.eager import initial_parameters
from ondevice.backends.opening import open_backend
from ondevice.contract import safetensors_file
from ondevice.contract.artifact import ArtifactError, open_artifact
from ondevice.contract.golden_step import check_golden
from ondevice.contract.vocabulary import StepSpec
from ondevice.native.runtime.program import ProgramError

ROOT = Path(__file__).parents[2]
TINY = [
    "--arch",
    "three_convolutions",
    "--embedding-dim",
    "8",
    "--image-size",
    "16",
    "--channels",
    "1",
    "--max-width",
    "32",
]
SPEC = StepSpec("three_convolutions", embedding_dim=8, image_shape=(1, 16, 16))


def run(command: Callable[..., None], *arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


def run_export(out: Path, *arguments: str) -> Result:
    return run(fedss.commands.export.command, "--out", str(out), *TINY, *arguments)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """An artifact for every runtime, and what the export printed."""
    out = tmp_path_factory.mktemp("export") / "artifact"
    result = run_export(out, "--runtimes", "executorch,onnxruntime,onnxruntime-training", "--json")
    assert result.exception is None, result.output
    return out, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--arch", "resnet"], 2, "architecture is 'resnet'; expected one of mobilenet_v3_large"),
        (["--embedding-dim", "0"], 2, "embedding_dim is 0"),
        (["--image-size", "-1"], 2, "image_shape"),
        (["--logits", "sine"], 2, "logits is 'sine'; expected one of cosine, dot"),
        (["--randomness", "on"], 2, "randomness is 'on'; expected one of off, input"),
        (["--train", "lora:0"], 2, "train has 'lora:0'; expected lora:R"),
        (["--runtimes", "tflite"], 2, "runtimes are tflite"),
        (["--micro-batch", "0"], 2, "micro_batch is 0"),
        (["--max-width", "1"], 2, "max_width is 1"),
        (["--memory-budget", "0"], 2, "memory_budget_mb is 0"),
        (["--out", "."], 2, "exists"),
    ],
)
def test_wrong_arguments_are_refused_without_torch(
    tmp_path: Path, arguments: list[str], code: int, complaint: str
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = subprocess.run(
        [sys.executable, "-m", "fedss.command_line", "export", "--out", "new", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert complaint in " ".join(done.stderr.split())


@pytest.mark.slow
def test_an_export_prints_files_and_parity_and_leaves_only_the_artifact(
    exported: tuple[Path, dict[str, object]],
) -> None:
    out, printed = exported
    assert printed["artifact"] == str(out)
    files = printed["files"]
    assert isinstance(files, dict)
    assert {
        "step.pte",
        "embed.pte",
        "step.onnx",
        "embed.onnx",
        "initial.safetensors",
        "golden.safetensors",
    } < set(files)
    assert len([name for name in files if name.startswith("ort_training/")]) == 4
    parity = printed["parity"]
    assert isinstance(parity, dict)
    assert set(parity) == {"executorch", "onnxruntime", "onnxruntime-training"}
    for result in parity.values():
        assert result["passed"]
        assert 0 <= result["worst_relative_error"] < 1e-4
    assert [path.name for path in out.parent.iterdir()] == ["artifact"]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["executorch", "onnxruntime", "onnxruntime-training"])
def test_a_published_artifact_passes_its_golden_step_again(
    runtime: str, exported: tuple[Path, dict[str, object]]
) -> None:
    artifact = open_artifact(exported[0])
    assert check_golden(open_backend(artifact, runtime), artifact.initial(), artifact.golden()).passed


@pytest.mark.slow
def test_inspect_shows_operators_memory_and_what_sampling_saves(
    exported: tuple[Path, dict[str, object]],
) -> None:
    result = run(
        fedss.commands.inspect.command,
        str(exported[0]),
        "--num-classes",
        "1000,2000",
        "--width",
        "20",
        "--json",
    )
    assert result.exception is None, result.output
    printed = json.loads(result.stdout)
    assert printed["operators"]["step.onnx"]["Conv"] > 0
    planned = [figure["planned_bytes"] for figure in printed["memory"] if figure["runtime"] == "executorch"]
    assert min(planned) > 0
    measured = {figure["runtime"] for figure in printed["memory"] if figure["peak_bytes"]}
    assert measured == {"executorch", "onnxruntime"}  # the process of the third holds torch
    one, two = printed["heads"]
    parameters = sum(value.size for value in initial_parameters(SPEC, 0).values())
    assert one["head_share"] == pytest.approx(1000 * 8 / (1000 * 8 + parameters))
    assert two["full_softmax_bytes_per_round"]["model_slice"] - one["full_softmax_bytes_per_round"][
        "model_slice"
    ] == pytest.approx(1000 * (8 * 4 + 8), rel=0.001)
    assert one["bytes_per_round"] == two["bytes_per_round"]
    assert one["bytes_per_round"]["total"] < one["full_softmax_bytes_per_round"]["total"]


@pytest.mark.slow
def test_inspect_and_export_show_tables_to_people(exported: tuple[Path, dict[str, object]]) -> None:
    shown = run(fedss.commands.inspect.command, str(exported[0]), "--width", "20").stdout
    for words in ("every file verified", "three_convolutions", "full softmax", "executorch"):
        assert words in shown


@pytest.mark.slow
def test_bench_measures_a_runtime_beside_eager(
    exported: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    arguments = [
        "--runtime",
        "onnxruntime",
        "--against",
        "eager",
        "--batch",
        "6",
        "--widths",
        "20",
        "--steps",
        "2",
        "--json",
    ]
    result = run(fedss.commands.bench.command, str(exported[0]), *arguments, "--out", str(tmp_path))
    assert result.exception is None, result.output
    rows = {row["runtime"]: row for row in json.loads(result.stdout)["rows"]}
    eager, onnxruntime = rows["eager"], rows["onnxruntime"]
    assert (onnxruntime["batch"], onnxruntime["micro_batch"]) == (6, 4)
    assert onnxruntime["peak_mb"] < eager["peak_mb"]  # its process holds no torch


def scale_a_weight_gradient(lowered: dict[str, bytes]) -> dict[str, bytes]:
    """Break one kernel: the gradient of the second convolution comes out 0.1 % too large."""
    model = onnx.load_from_string(lowered["step.onnx"])
    names = [output.name for output in model.graph.output]
    broken = next(name for name in names if "conv2" in name)
    for node in model.graph.node:
        node.output[:] = ["right" if name == broken else name for name in node.output]
    model.graph.initializer.append(numpy_helper.from_array(np.array(1.001, np.float32), "wrong"))
    model.graph.node.append(onnx.helper.make_node("Mul", ["right", "wrong"], [broken]))
    return {**lowered, "step.onnx": model.SerializeToString()}


def test_an_artifact_with_a_broken_kernel_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        export.pipeline,
        "lower_lengths",
        lambda *arguments: scale_a_weight_gradient(lower_lengths(*arguments)),
    )
    result = run_export(tmp_path / "artifact", "--runtimes", "onnxruntime")
    assert isinstance(result.exception, CheckFailed)
    assert exit_code_for(result.exception) is ExitCode.CHECK_FAILED
    assert re.search(r"onnxruntime .* conv2\.weight: relative error 1\.0e-03", str(result.exception))
    assert list(tmp_path.iterdir()) == []


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt() -> None:
    raise KeyboardInterrupt


def fill_the_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("stop", [terminate, interrupt, fill_the_disk])
def test_an_export_that_is_stopped_leaves_nothing_and_the_old_artifact_whole(
    stop: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_tiny_artifact(tmp_path / "artifact")

    monkeypatch.setattr(export.pipeline, "check_parity", lambda *_: stop())
    result = run_export(tmp_path / "artifact", "--overwrite", "--runtimes", "onnxruntime")
    assert result.exit_code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["artifact"]
    assert open_artifact(tmp_path / "artifact") == old


def test_an_artifact_is_replaced_only_when_asked_and_anything_else_never(tmp_path: Path) -> None:
    old = make_tiny_artifact(tmp_path / "artifact")
    refused = run_export(tmp_path / "artifact", "--runtimes", "onnxruntime")
    assert isinstance(refused.exception, UsageError)
    assert "--overwrite" in str(refused.exception)
    replaced = run_export(tmp_path / "artifact", "--runtimes", "onnxruntime", "--overwrite")
    assert replaced.exception is None, replaced.output
    assert open_artifact(tmp_path / "artifact").sha256 != old.sha256
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter").touch()
    kept = run_export(tmp_path / "documents", "--runtimes", "onnxruntime", "--overwrite")
    assert isinstance(kept.exception, UsageError)
    assert (tmp_path / "documents" / "letter").exists()


def test_weights_from_a_file_are_what_the_artifact_starts_from(tmp_path: Path) -> None:
    weights = initial_parameters(SPEC, 11)
    (tmp_path / "weights.safetensors").write_bytes(safetensors_file.to_bytes(weights, {}))
    result = run_export(
        tmp_path / "artifact", "--weights", str(tmp_path / "weights.safetensors"), "--runtimes", "onnxruntime"
    )
    assert result.exception is None, result.output
    np.testing.assert_array_equal(
        open_artifact(tmp_path / "artifact").initial()["conv1.weight"], weights["conv1.weight"]
    )


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    others = initial_parameters(StepSpec("three_convolutions", embedding_dim=9, image_shape=(1, 16, 16)), 0)
    (tmp_path / "weights.safetensors").write_bytes(safetensors_file.to_bytes(others, {}))
    result = run_export(tmp_path / "artifact", "--weights", str(tmp_path / "weights.safetensors"))
    assert isinstance(result.exception, ArtifactError)
    assert exit_code_for(result.exception) is ExitCode.BAD_DATA
    assert not (tmp_path / "artifact").exists()


@pytest.mark.slow
def test_a_memory_budget_is_measured_and_kept(tmp_path: Path) -> None:
    result = run_export(
        tmp_path / "artifact", "--runtimes", "onnxruntime", "--memory-budget", "2000", "--json"
    )
    assert result.exception is None, result.output
    printed = json.loads(result.stdout)
    assert printed["micro_batch"] == 32  # the most that a budget picks
    assert all(figure["peak_bytes"] <= 2000 << 20 for figure in printed["memory"])
    refused = run_export(tmp_path / "other", "--runtimes", "onnxruntime", "--memory-budget", "10")
    assert isinstance(refused.exception, UsageError)
    assert "the budget is 10 MB" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "resnet"], "architecture is 'resnet'; expected one of mobilenet_v3_large"),
        (["--runtimes", "tensorflow"], "runtimes are tensorflow; expected some of executorch"),
        (["--runtimes", "onnxruntime,onnxruntime"], "each once"),
        (
            ["--train", "nothing"],
            "train has 'nothing', which no parameter matches; expected all, head, last-two",
        ),
        (["--logits", "linear"], "logits is 'linear'"),
        (["--micro-batch", "0"], "micro_batch is 0"),
        (["--max-width", "1"], "max_width is 1; expected 2 or more"),
        (["--embedding-dim", "0"], "embedding_dim is 0"),
        (["--image-size", "0"], r"image_shape is \(1, 0, 0\)"),
        (["--memory-budget", "0"], "memory_budget_mb is 0"),
    ],
)
def test_a_request_that_cannot_be_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run_export(tmp_path / "artifact", *arguments)
    assert isinstance(result.exception, UsageError)
    assert exit_code_for(result.exception) is ExitCode.USAGE
    assert re.search(message, str(result.exception))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_program_that_cannot_be_run_is_bad_data_and_no_bug(
    exported: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    copy = open_artifact(Path(shutil.copytree(exported[0], tmp_path / "artifact")))
    replace_file(copy, "step.pte", b"not a program, though the manifest says so" * 10)
    result = run(fedss.commands.inspect.command, str(copy.directory), "--width", "20", "--check")
    assert isinstance(result.exception, ProgramError)
    assert exit_code_for(result.exception) is ExitCode.BAD_DATA
