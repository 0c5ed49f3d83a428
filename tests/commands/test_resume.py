"""A run that is killed at any moment and resumed ends in the same bytes as one that was left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ondevice.contract import safetensors_file
from server_sim.server.journal import Journal

ROUNDS = 40


def simulate(run_path: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "fedss.command_line",
        "simulate",
        "glyphs-tiny",
        "--json",
        "--workers",
        "1",
    ]
    command += ["--rounds", str(ROUNDS), "--out", str(run_path), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rounds_recorded(run_path: Path) -> int:
    metrics = run_path / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def wait_for_round(process: subprocess.Popen[str], run_path: Path, round_index: int) -> None:
    deadline = time.monotonic() + 120
    while rounds_recorded(run_path) < round_index:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"round {round_index} did not come"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_path = tmp_path_factory.mktemp("undisturbed") / "run"
    process = simulate(run_path)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return run_path


def assert_same_run(run_path: Path, undisturbed: Path) -> None:
    assert (run_path / "state.safetensors").read_bytes() == (undisturbed / "state.safetensors").read_bytes()
    assert metrics_without_time(run_path) == metrics_without_time(undisturbed)


def metrics_without_time(run_path: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in json.loads(line).items() if name != "seconds"}
        for line in (run_path / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("save_every", [1, 7])
def test_killed_at_random_moments_and_resumed_it_ends_in_the_same_bytes(
    tmp_path: Path, undisturbed: Path, save_every: int
) -> None:
    run_path = tmp_path / "run"
    options = ["--resume", "--set", f"server.save_every={save_every}"]
    rng = np.random.default_rng(save_every)
    for stop_at in np.sort(rng.integers(1, ROUNDS - 1, 3)):
        process = simulate(run_path, *options)
        wait_for_round(process, run_path, int(stop_at))
        time.sleep(float(rng.random()) * 0.05)  # somewhere inside a round, a save or an evaluation
        process.kill()
        process.communicate()
        assert not (run_path / "summary.json").exists()
    process = simulate(run_path, *options)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert_same_run(run_path, undisturbed)


def rows_in_files(run_path: Path) -> dict[int, tuple[bytes, int]]:
    """Row -> its record and its round."""
    index = np.fromfile(run_path / "tables/columns.index", np.int64).reshape(-1, 3)
    records = np.fromfile(run_path / "tables/columns.records", np.float32).reshape(len(index), -1)
    tensors, _ = safetensors_file.read_file(run_path / "state.safetensors")
    used = int(np.asarray(tensors["table.columns.extent"])[2])
    return {int(row): (records[place].tobytes(), int(at)) for place, (row, at, _) in enumerate(index[:used])}


@pytest.mark.slow
def test_tables_in_files_killed_and_resumed_are_those_in_memory_row_for_row(
    tmp_path: Path, undisturbed: Path
) -> None:
    run_path = tmp_path / "run"
    rng = np.random.default_rng(0)
    for stop_at in np.sort(rng.integers(1, ROUNDS - 1, 2)):
        process = simulate(run_path, "--resume", "--set", "server.store=mapped")
        wait_for_round(process, run_path, int(stop_at))
        time.sleep(float(rng.random()) * 0.05)
        process.kill()
        process.communicate()
    process = simulate(run_path, "--resume", "--set", "server.store=mapped")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert metrics_without_time(run_path) == metrics_without_time(undisturbed)
    mapped, in_memory = (
        {
            name: np.asarray(tensor)
            for name, tensor in safetensors_file.read_file(path / "state.safetensors")[0].items()
        }
        for path in (run_path, undisturbed)
    )
    for name in set(mapped) - {"table.columns.extent"}:
        assert mapped[name].tobytes() == in_memory[name].tobytes()
    weights, moments, current_at = (
        in_memory[f"table.columns.{part}"] for part in ("weights", "moment0", "current_at")
    )
    rows = rows_in_files(run_path)
    assert set(rows) == set(np.flatnonzero(current_at).tolist())
    for row, (record, at) in rows.items():
        assert (record, at) == (weights[row].tobytes() + moments[row].tobytes(), current_at[row])
    assert list(Journal(run_path / "tables/journal").replay()) == []


@pytest.mark.slow
def test_ctrl_c_saves_ends_cleanly_and_resume_goes_on(tmp_path: Path, undisturbed: Path) -> None:
    run_path = tmp_path / "run"
    process = simulate(run_path, "--set", "server.save_every=1000")
    wait_for_round(process, run_path, 5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    done = rounds_recorded(run_path)
    assert (run_path / "state.safetensors").exists()
    process = simulate(run_path, "--resume", "--set", "server.save_every=1000")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert rounds_recorded(run_path) == ROUNDS > done
    assert_same_run(run_path, undisturbed)


@pytest.mark.slow
def test_a_folder_that_holds_a_run_is_not_overwritten(undisturbed: Path) -> None:
    process = simulate(undisturbed)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--resume" in errors


@pytest.mark.slow
def test_resuming_with_other_settings_is_refused_and_names_them(undisturbed: Path) -> None:
    before = (undisturbed / "state.safetensors").read_bytes()
    process = simulate(undisturbed, "--resume", "--set", "client.learning_rate=0.7")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "client.learning_rate" in errors
    assert (undisturbed / "state.safetensors").read_bytes() == before
