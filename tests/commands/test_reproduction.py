"""The command lines that a report gives make the same runs again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from server_sim.experiment import Experiment, load_experiment
from server_sim.runs.reproduction import reproduction_command, table_command
from server_sim.runs.tables import table_runs


def test_a_table_of_the_package_is_made_again_by_its_name() -> None:
    planned = [run.experiment for run in table_runs(load_experiment("glyphs-table1"))]
    assert table_command(planned[:3]) == "fedss simulate glyphs-table1"
    assert table_command([planned[0].overridden({"client.epochs": 7})]) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 4, "server.rounds": 7},
        {"scheme.name": "positives_only", "title": 'It\'s a "title" = [1]'},
        {"data.population": "true", "model.pretrained": "a b"},
        {"scheme.name": "negatives_only", "scheme.num_negatives": 3},
        {"client.transforms": [{"name": "clip", "norm": 0.5}, {"name": "precision", "format": "bf16"}]},
    ],
)
def test_the_command_gives_the_same_settings_again(changes: dict[str, Any], tmp_path: Path) -> None:
    experiment = load_experiment("glyphs-tiny").overridden(changes)
    assert _experiment_of(reproduction_command(experiment), tmp_path) == experiment


def test_settings_that_no_option_can_express_are_written_to_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("server_sim.runs.reproduction.experiment_names", list)
    experiment = load_experiment("glyphs-tiny").overridden(
        {
            "title": 'Quotes " and \\ are no trouble',
            "server.slice_transforms": [{"name": "precision", "format": "fp16"}],
        }
    )
    assert _experiment_of(reproduction_command(experiment), tmp_path) == experiment


def _experiment_of(command: str, folder: Path) -> Experiment:
    """What `fedss simulate` would run: its options applied as it applies them."""
    heredoc = re.match(r"cat > (\S+) <<'END'\n(.*)\nEND\n(.*)", command, re.DOTALL)
    if heredoc:
        name, text, command = heredoc.groups()
        (folder / name).write_text(text)
        command = command.replace(name, str(folder / name))
    words = shlex.split(command)
    assert words[:2] == ["fedss", "simulate"]
    options = list(zip(words[3::2], words[4::2], strict=True))
    loaded = load_experiment(words[2], [value for option, value in options if option == "--set"])
    fields = {"--rounds": "server.rounds", "--seed": "seed"}
    return loaded.overridden({fields[option]: int(value) for option, value in options if option in fields})
