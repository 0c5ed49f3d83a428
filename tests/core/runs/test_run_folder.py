"""A run's folder: one process at a time, never somebody else's, and what is cheap to check is checked first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedss.command_line import main
from ondevice.contract.link import Trace
from server_sim.experiment import ConfigurationError, load_experiment
from server_sim.runs.directory import RunDirectory


def test_two_processes_cannot_work_in_one_folder(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    first.claim(resume=True)
    with pytest.raises(ConfigurationError, match="another process is at work"):
        second.claim(resume=True)
    first.close()
    second.claim(resume=True)
    second.close()


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "versions.json").write_text("mine")
    for resume in (False, True):
        with pytest.raises(
            ConfigurationError, match=r"is no run's folder, but it is not empty \(versions.json\)"
        ):
            RunDirectory(tmp_path).claim(resume)
    assert [path.name for path in tmp_path.iterdir()] == ["versions.json"]
    file = tmp_path / "versions.json"
    with pytest.raises(ConfigurationError, match="is not a folder"):
        RunDirectory(file).claim(resume=False)


def test_a_run_that_was_killed_as_it_began_can_be_resumed(tmp_path: Path) -> None:
    experiment = load_experiment("glyphs-tiny")
    run = RunDirectory(tmp_path / "run")
    run.claim(resume=False)
    run.start(experiment)
    run.close()
    (run.path / "versions.json").unlink()  # written second
    run.claim(resume=True)
    run.resume(experiment, 0)
    run.close()
    assert (run.path / "versions.json").exists()


def test_a_traceback_is_kept_once_per_cause(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.keep_traces([Trace("KeyError in f, a.py:3", "first"), Trace("KeyError in f, a.py:3", "second")])
    RunDirectory(tmp_path).keep_traces([Trace("KeyError in f, a.py:3", "third"), Trace("OSError", "fourth")])
    assert (tmp_path / "tracebacks.log").read_text().split() == (
        ["==", "KeyError", "in", "f,", "a.py:3", "first", "==", "OSError", "fourth"]
    )


TABLE = 'table={seeds=[0], rows=[{label="Good"}, {label="Bad", override={"server.clients_per_round"=13}}]}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "server.clients_per_round=13"], "glyphs-tiny has 12 clients"),
        (["--set", "model.pretrained=nowhere"], "model.pretrained is 'nowhere'"),
        (["--set", "model.architecture=lenet"], "model.architecture is 'lenet'"),
        (["--set", "model.objective=hinge"], "model.objective is 'hinge'; expected one of sampled_softmax"),
        (["--runtime", "tflite"], "--runtime is 'tflite'"),
        (["--out", "USED"], "is no run's folder"),
        (["--set", TABLE], "glyphs-tiny has 12 clients"),
    ],
)
def test_what_is_cheap_to_check_is_checked_before_data_are_rendered(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").touch()
    arguments = [str(tmp_path / "used") if word == "USED" else word for word in arguments]
    command = ["fedss", "simulate", "glyphs-tiny", "--workers", "1", "--cache", str(tmp_path / "cache")]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path / "run"), *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "run").exists()
