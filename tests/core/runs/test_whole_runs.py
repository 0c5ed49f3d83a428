"""Settings that unit tests see one by one, through whole small runs: they learn, and a resumed run is the same run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedss.command_line import main
from ondevice.contract import safetensors_file

CACHE = Path(__file__).parents[3] / "cache"
CHANCE = 1 / 60
TRANSFORMS = ("client.transforms", "server.slice_transforms")
SETTINGS = {
    "bf16": [f"{field}=[{{name = 'precision', format = 'bf16'}}]" for field in TRANSFORMS],
    "fp16": [f"{field}=[{{name = 'precision', format = 'fp16'}}]" for field in TRANSFORMS],
    "int8": ["client.transforms=[{name = 'int8'}]"],
    "top_k": ["client.transforms=[{name = 'top_k', fraction = 0.1}]", "server.save_every=2"],
    "clipped": ["client.transforms=[{name = 'clip', norm = 0.5}]"],
    "fedadam": ["server.optimizer=fedadam", "server.learning_rate=0.01"],
    "holders": ["server.denominator=holders"],
    "all of them": [
        "client.transforms=[{name = 'clip', norm = 0.5}, {name = 'precision', format = 'bf16'}]",
        "server.slice_transforms=[{name = 'precision', format = 'bf16'}]",
        *("server.optimizer=fedadam", "server.learning_rate=0.01"),
        *("server.denominator=holders", "server.selection=proportional", "client.momentum=0.5"),
    ],
    "centralized": ["scheme.name=centralized"],
    "fedaws": ["scheme.name=fedaws", "scheme.spreadout_weight=0.001"],
    "fedvc and fedir": [
        "data.partition={name = 'dirichlet', num_clients = 8, concentration = 20.0, size_spread = 1.0}",
        *("scheme.virtual_clients=60", "scheme.importance=population"),
    ],
}


def fedss(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["fedss", *map(str, arguments), "--cache", str(CACHE)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_learns_and_goes_on_where_it_was_left(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ["--workers", "1", *(word for setting in SETTINGS[name] for word in ("--set", setting))]
    at_once, in_two = tmp_path / "at once", tmp_path / "in two"
    fedss(monkeypatch, "simulate", "glyphs-tiny", *options, "--rounds", "6", "--out", at_once)
    fedss(monkeypatch, "simulate", "glyphs-tiny", *options, "--rounds", "3", "--out", in_two)
    fedss(monkeypatch, "simulate", "glyphs-tiny", *options, "--rounds", "6", "--out", in_two, "--resume")
    states = [(path / "state.safetensors").read_bytes() for path in (at_once, in_two)]
    assert states[0] == states[1]
    tensors, _ = safetensors_file.from_bytes(states[0])
    for key, tensor in tensors.items():
        assert np.isfinite(np.asarray(tensor)).all(), key
    lines = [json.loads(line) for line in (at_once / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["top1"] > 3 * CHANCE
    losses = [line["mean_loss"] for line in lines]
    assert losses[-1] < losses[0]


def test_a_pretrained_extractor_is_what_an_experiment_starts_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {}
    for steps in (1, 60):
        out = tmp_path / f"{steps}.safetensors"
        fedss(
            monkeypatch,
            *("pretrain", "--population", "glyphs-tiny", "--steps", str(steps), "--out", out, "--json"),
        )
        losses[steps] = json.loads(capsys.readouterr().out)["loss"]
    assert losses[60] < 0.9 * losses[1]
    run = tmp_path / "run"
    fedss(
        monkeypatch,
        *("simulate", "glyphs-tiny", "--workers", "1", "--rounds", "1", "--out", run),
        *("--set", f"model.pretrained={out}", "--set", "client.learning_rate=0"),
    )
    made, _ = safetensors_file.read_file(out)
    trained, _ = safetensors_file.read_file(run / "state.safetensors")
    for name, tensor in made.items():
        saved = trained[f"dense.{name.removeprefix('extractor.')}"]
        np.testing.assert_array_equal(np.asarray(saved), np.asarray(tensor))


NETWORK = """
from torch import nn


def build():
    first = [nn.Conv2d(1, 8, 5, stride=4), nn.ReLU(), nn.Dropout2d(0.2)]
    return nn.Sequential(*first, nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
"""


@pytest.mark.parametrize("scheme", ["fedss", "centralized"])
def test_a_run_with_dropout_goes_on_where_it_was_left(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "networks.py").write_text(NETWORK)

    def state(name: str, randomness: str, *rounds: int) -> bytes:
        model = {
            "architecture": f"{tmp_path}/networks.py:build",
            "pretrained": "none",
            "randomness": randomness,
        }
        chosen = [f"scheme.name={scheme}", *(f"model.{name}={value}" for name, value in model.items())]
        options = ["--workers", "1", *(word for setting in chosen for word in ("--set", setting))]
        for number, until in enumerate(rounds):
            resume = ["--resume"] if number else []
            where = ["--rounds", str(until), "--out", str(tmp_path / name), *resume]
            fedss(monkeypatch, "simulate", "glyphs-tiny", *options, *where)
        return (tmp_path / name / "state.safetensors").read_bytes()

    at_once = state("at once", "input", 2)
    assert state("in two", "input", 1, 2) == at_once
    assert state("without", "off", 2) != at_once
