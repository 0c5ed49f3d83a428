"""`fedss devices`, `fedss emulator` and `fedss simulate --device` as a person types them, with real emulated phones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.native.arm_programs import CACHE, require_programs

from android_harness.emulator.machine import EMULATOR_PROGRAMS, attach_emulator
from fedss.command_line import main

ROUNDS = 2
Here = Callable[..., subprocess.CompletedProcess[str]]
TINY = ["--rounds", str(ROUNDS), "--set", "evaluation.every=1", "--set", "data.population=glyphs-tiny"]


def fedss(*arguments: str) -> subprocess.CompletedProcess[str]:
    return finish(start(*arguments))


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedss.command_line", *arguments, "--cache", str(CACHE)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    stdout, stderr = process.communicate(timeout=900)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs a verb in this process: what needs no process of its own need not import torch again."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["fedss", *arguments, "--cache", str(CACHE)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), printed.out, printed.err)

    return run


def rounds_of(run_path: Path) -> list[dict[str, Any]]:
    metrics = run_path / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that every other is compared with: all clients simulated, on the exported step."""
    run_path = tmp_path_factory.mktemp("simulated") / "run"
    options = ["--runtime", "executorch", "--workers", "1", "--out", str(run_path), "--json"]
    done = fedss("simulate", "glyphs-tiny", *TINY, *options)
    assert done.returncode == 0, done.stderr
    return run_path


def beside(simulated: Path, tmp_path: Path) -> Path:
    """A folder for another run of the same experiment, which need not be exported again."""
    shutil.copytree(simulated / "artifact", tmp_path / "run" / "artifact")
    return tmp_path / "run"


def assert_same_curve(run_path: Path, simulated: Path) -> None:
    lines, expected = rounds_of(run_path), rounds_of(simulated)
    assert len(lines) == len(expected) == ROUNDS
    for line, other in zip(lines, expected, strict=True):
        assert line["dropped"] == {}
        assert line["num_updates"] == other["num_updates"]
        assert line["mean_loss"] == pytest.approx(other["mean_loss"], rel=1e-4)
        assert line["top1"] == pytest.approx(other["top1"], abs=0.01)
        assert (line["bytes_up"], line["bytes_down"]) == (other["bytes_up"], other["bytes_down"])


@pytest.mark.slow
def test_two_emulated_phones_and_simulated_clients_learn_what_simulated_clients_learn(
    simulated: Path, tmp_path: Path
) -> None:
    require_programs(*EMULATOR_PROGRAMS)
    run_path = beside(simulated, tmp_path)
    phones = ["--device", "emulator", "--device", "emulator", "--simulated", "2"]
    done = fedss("simulate", "glyphs-tiny", *TINY, *phones, "--out", str(run_path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dropped_clients"] == 0
    assert_same_curve(run_path, simulated)


@pytest.mark.slow
def test_when_the_only_phone_dies_the_run_is_saved_ends_with_4_and_goes_on_elsewhere(
    simulated: Path, tmp_path: Path
) -> None:
    require_programs(*EMULATOR_PROGRAMS)
    run_path = beside(simulated, tmp_path)
    name = f"command-{os.getpid()}"
    started = fedss("emulator", "start", "--name", name, "--memory", "192", "--json")
    try:
        assert started.returncode == 0, started.stderr
        assert json.loads(started.stdout)["device"] == f"emulator:{name}"
        common = ["glyphs-tiny", *TINY, "--out", str(run_path)]
        process = start("simulate", *common, "--device", f"emulator:{name}", "--device-patience", "1")
        try:
            while not rounds_of(run_path):
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            listed = fedss("devices", "--json")
            (line,) = [d for d in json.loads(listed.stdout)["devices"] if d["name"] == f"emulator:{name}"]
            assert line["description"]["abi"] == "aarch64"
            assert line["description"]["ram_mb"] < 192
            attach_emulator(CACHE, name).power_off()
            ended = finish(process)
        finally:
            process.kill()
        assert ended.returncode == 4, ended.stderr
        assert f"emulator:{name} is powered off" in ended.stderr
        assert "go on with --resume" in ended.stderr
        status = json.loads(fedss("emulator", "status", "--json").stdout)["emulators"]
        assert [machine["state"] for machine in status if machine["name"] == name] == ["powered off"]
    finally:
        stopped = fedss("emulator", "stop", "--name", name)
    assert stopped.returncode == 0, stopped.stderr
    resumed = fedss("simulate", *common, "--device", "host", "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_curve(run_path, simulated)


@pytest.mark.slow
def test_a_run_whose_only_device_was_never_there_ends_with_4_at_once(simulated: Path, tmp_path: Path) -> None:
    require_programs("adb")
    run_path = beside(simulated, tmp_path)
    done = fedss("simulate", "glyphs-tiny", *TINY, "--device", "emulator:nowhere", "--out", str(run_path))
    assert done.returncode == 4
    assert "fedss emulator start --name nowhere" in done.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--device", "toaster"], "--device is 'toaster'; expected host, qemu, emulator"),
        (["--device", "host", "--simulated", "4"], "--simulated is 4 of 4 clients per round"),
        (["--simulated", "1"], "--simulated is for runs with --device"),
        (["--device", "host", "--runtime", "eager"], "--runtime is 'eager'; devices have a client for"),
        (["--device", "adb:x", "--device", "adb:x"], "--device names adb:x twice"),
        (["--device", "host", "--set", "scheme.name=centralized"], "no clients to train on devices"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    options: list[str], complaint: str, tmp_path: Path, here: Here
) -> None:
    done = here("simulate", "glyphs-tiny", *options, "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


def test_devices_lists_this_machine_and_how_to_get_a_phone(here: Here) -> None:
    done = here("devices", "--json")
    assert done.returncode == 0, done.stderr
    listed = {device["name"]: device for device in json.loads(done.stdout)["devices"]}
    host = listed["host"]["description"]
    assert listed["host"]["state"] == "ready"
    assert (host["abi"], host["kernel"]) == (os.uname().machine, os.uname().release)
    assert {"cores", "ram_mb", "free_mb", "android_version", "battery_percent", "temperature_celsius"} <= set(
        host
    )
    assert "fedss emulator start" in listed["emulator"]["advice"] or "apt-get" in listed["emulator"]["advice"]
    assert f"Linux {os.uname().release}" in here("devices").stdout


def test_an_emulator_that_cannot_be_is_wrong_usage_and_one_that_is_not_there_a_device_failure(
    here: Here,
) -> None:
    require_programs(*EMULATOR_PROGRAMS)
    small = here("emulator", "start", "--name", f"small-{os.getpid()}", "--memory", "16")
    assert small.returncode == 2
    assert "at least 80 MB" in small.stderr
    absent = here("emulator", "stop", "--name", "nowhere")
    assert absent.returncode == 4
    assert "no emulator 'nowhere'" in absent.stderr
