"""`fedss inspect` shows what goes into a step, how much of it, and what it costs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from helpers.artifacts.tiny_artifact import make_tiny_artifact
from typer.testing import CliRunner, Result

import fedss.commands.inspect
from fedss.console import UsageError


def run_inspect(folder: Path, *arguments: str) -> Result:
    make_tiny_artifact(folder)
    app = typer.Typer()
    app.command()(fedss.commands.inspect.command)
    return CliRunner().invoke(app, [str(folder), *arguments])


def test_the_signature_and_its_bounds_are_shown(tmp_path: Path) -> None:
    result = run_inspect(tmp_path / "artifact", "--width", "20", "--json")
    assert result.exception is None, result.output
    printed = json.loads(result.stdout)
    arrays = {array["name"]: array for array in printed["signature"]}
    assert {"role": "feature", "dtype": "uint8", "shape": ["b", 1, 16, 16]}.items() <= arrays[
        "images"
    ].items()
    assert {"role": "table", "dtype": "float32", "shape": ["rows:columns", 8]}.items() <= arrays[
        "columns"
    ].items()
    assert {"role": "dense", "dtype": "float32"}.items() <= arrays["conv1.weight"].items()
    assert printed["bounds"] == {"b": 4, "rows:columns": 64}


def test_people_see_the_signature_too(tmp_path: Path) -> None:
    shown = run_inspect(tmp_path / "artifact", "--width", "20").stdout
    cells = [re.findall(r"[^\s│]+(?: [^\s│]+)*", line) for line in shown.splitlines()]
    assert ["images", "feature", "uint8", "b x 1 x 16 x 16"] in cells
    assert ["columns", "table", "float32", "rows:columns x 8"] in cells
    assert any(row[1:3] == ["dense", "float32"] for row in cells)
    assert "b up to 4, rows:columns up to 64" in shown


def test_the_share_of_the_head_is_set_beside_the_papers_extractor(tmp_path: Path) -> None:
    result = run_inspect(tmp_path / "artifact", "--width", "20")
    shown = " ".join(result.stdout.split())
    assert "section 4.3 of the paper fit an extractor of 3.69 M parameters" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "65"], "--width is 65; .* takes at most 64 classes"),
        (["--width", "20", "--widths", "65"], "--widths has 65; .* takes at most 64 classes"),
        (["--width", "20", "--num-classes", "many"], "--num-classes is 'many'; expected whole numbers"),
    ],
)
def test_a_request_that_cannot_be_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run_inspect(tmp_path / "artifact", *arguments)
    assert isinstance(result.exception, UsageError)
    assert re.search(message, str(result.exception))
