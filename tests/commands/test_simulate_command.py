"""`fedss simulate` as a person calls it: results, errors and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedss.api.runs import RunStart
from fedss.command_line import main
from fedss.commands.simulate import _Display
from server_sim.experiment import load_experiment
from server_sim.runs.records import round_record


def fedss(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedss.command_line", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_json_is_one_object_on_stdout_with_the_promised_keys(tmp_path: Path) -> None:
    done = fedss(
        "simulate", "glyphs-tiny", "--rounds", "2", "--workers", "1", "--out", str(tmp_path / "run"), "--json"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    promised = "run_dir rounds top1 bytes_down_per_client bytes_up_per_client dropped_clients client_updates_per_second"
    assert set(promised.split()) <= set(result)
    assert result["rounds"] == 2
    assert result["bytes_down_per_client"] > 4 * 200_000  # φ alone has more than 200,000 parameters
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        "experiment.json",
        "versions.json",
        "metrics.jsonl",
        "tensorboard",
        "state.safetensors",
        "summary.json",
    } <= kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "experiment 'nonsense' is not known"),
        (["glyphs-tiny", "--set", "client.bach_size=3"], "did you mean client.batch_size?"),
        (
            ["glyphs-tiny", "--set", "scheme.foo=1"],
            "scheme.foo: there is no such field; scheme has name, virtual_clients, importance, num_negatives",
        ),
        (["glyphs-tiny", "--set", "scheme.name=fedprox"], "scheme.name is 'fedprox'; expected one of fedss,"),
        (["glyphs-tiny", "--set", "server.clients_per_round=13"], "glyphs-tiny has 12 clients"),
        (["glyphs-tiny", "--set", "model.pretrained=nowhere"], "model.pretrained is 'nowhere'"),
        (
            ["glyphs-tiny", "--set", "model.embedding_dim=8"],
            "embedding.weight is float32[64, 2048]; expected float32[8, 2048]",
        ),
        (["glyphs-tiny", "--set", "data.population=nowhere"], "data.population is 'nowhere'"),
        (["glyphs-tiny", "--runtime", "tflite"], "--runtime is 'tflite'"),
        (
            ["glyphs-tiny", "--engine", "cloud"],
            "--engine is 'cloud'; expected one of in-process, workers, ray",
        ),
        (["glyphs-tiny", "--address", "10.0.0.1:6379"], "--address is for the engine ray"),
        (
            ["glyphs-tiny", "--engine", "ray", "--address", "ray://head"],
            "--address is 'ray://head'; expected",
        ),
        (["glyphs-tiny", "--wrong"], "No such option"),
    ],
)
def test_wrong_usage_is_named_and_exits_with_2(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["fedss", "simulate", *arguments, "--workers", "1", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_engine_that_is_not_installed_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not there
    monkeypatch.setattr(
        sys, "argv", ["fedss", "simulate", "glyphs-tiny", "--engine", "ray", "--out", str(tmp_path / "run")]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "it needs the package ray, which is not installed: pip install 'fedss-mobile[cluster]'" in words
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_does_not_answer_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--engine", "ray", "--address", "127.0.0.1:9", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["fedss", "simulate", "glyphs-tiny", *options])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 4
    assert "nothing answers at 127.0.0.1:9" in capsys.readouterr().err


def test_ctrl_c_in_the_last_round_of_a_run_stops_the_table(tmp_path: Path) -> None:
    experiment = load_experiment("glyphs-tiny", ["server.rounds=1"])
    last = round_record({"round": 0, "mean_loss": 1.0}, experiment)
    with _Display() as display:
        display.on_run(RunStart(tmp_path, experiment, "fedss-2/seed-0", 1, 2))
        assert not display.stop_requested()
        signal.raise_signal(signal.SIGINT)
        display.on_round(last)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, (
            "between two runs it is Python's"
        )
        display.on_run(RunStart(tmp_path, experiment, "fedss-2/seed-1", 2, 2))
        assert display.stop_requested()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_a_table_runs_every_method_resumes_and_is_printed(tmp_path: Path) -> None:
    rows = (
        '[{label="FedSS", num_negatives=[2, 8]}, {label="Central", override={"scheme.name"="centralized"}}]'
    )
    arguments = [
        "simulate",
        "glyphs-tiny",
        "--rounds",
        "2",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "table"),
    ]
    arguments += ["--set", f"table={{seeds=[0, 1], rows={rows}}}"]
    first = fedss(*arguments, "--json")
    assert first.returncode == 0, first.stderr
    cells = json.loads(first.stdout)["rows"]
    assert [(cell["label"], cell["num_negatives"]) for cell in cells] == [
        ("FedSS", 2),
        ("FedSS", 8),
        ("Central", None),
    ]
    assert all(cell["num_seeds"] == 2 for cell in cells)
    again = fedss(*arguments, "--resume")
    assert again.returncode == 0, again.stderr
    assert "round 1" not in again.stderr  # nothing was run twice
    assert "FedSS" in again.stdout
    assert json.loads((tmp_path / "table" / "table.json").read_text())["rows"] == cells


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["executorch", "onnxruntime", "onnxruntime-training"])
def test_a_federation_on_an_exported_step_learns_as_the_eager_one_does(tmp_path: Path, runtime: str) -> None:
    losses = {}
    for name in ("eager", runtime):
        run = tmp_path / name
        done = fedss(
            "simulate", "glyphs-tiny", "--rounds", "4", "--workers", "1", "--runtime", name, "--out", str(run)
        )
        assert done.returncode == 0, done.stderr
        losses[name] = [
            json.loads(line)["mean_loss"] for line in (run / "metrics.jsonl").read_text().splitlines()
        ]
    assert losses[runtime] == pytest.approx(losses["eager"], rel=1e-4)
