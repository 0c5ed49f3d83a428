"""`fedss data` describes and draws a population, imports one, and refuses what cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedss.command_line import main
from server_sim.data.population import open_population
from server_sim.experiment import ConfigurationError, load_experiment
from server_sim.preparation import initial_weights, step_spec


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedss", "data", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for name, colour in (("a", 10), ("b", 200), ("c", 90)):
        Image.new("RGB", (12, 9), (colour, 0, 0)).save(tmp_path / f"{name}.png")
    path = tmp_path / "table.csv"
    path.write_text("path,user,class,split\na.png,ann,dark,train\nb.png,ben,bright,train\nc.png,,dark,test\n")
    return path


def test_glyphs_are_described_and_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = [tmp_path / "new" / "partition.png", tmp_path / "sheet.svg"]
    options = ("--plot", str(pictures[0]), "--contact-sheet", str(pictures[1]), "--cache", str(tmp_path))
    assert run(monkeypatch, "glyphs-tiny", *options, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["num_clients"], answer["num_classes"], answer["features"]) == (
        12,
        60,
        {"images": [1, 32, 32]},
    )
    assert 0 < answer["mean_emd"] < 2
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in pictures[1].read_bytes()
    assert {path.suffix for path in pictures[0].parent.iterdir()} == {".png"}, "nothing temporary is left"
    assert run(monkeypatch, "glyphs-tiny", "--cache", str(tmp_path)) == 0
    assert "classes per client" in capsys.readouterr().out


def test_image_files_become_a_population(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "colours"
    options = ("--import", str(table), "--image-size", "8", "--grayscale", "--json")
    assert run(monkeypatch, str(folder), *options) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["name"], answer["num_clients"], answer["features"]) == (
        "colours",
        2,
        {"images": [1, 8, 8]},
    )
    assert run(monkeypatch, str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out) == answer
    assert run(monkeypatch, str(folder), *options) == 2, "an import never writes over a folder"


@pytest.mark.parametrize("colours", [(), ("--grayscale",)])
def test_an_import_is_drawn_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Path, colours: tuple[str, ...]
) -> None:
    table.write_text(table.read_text().replace("bright", "$bright$^"))  # no formula
    pictures = [tmp_path / "sheet.png", tmp_path / "plot.png"]
    drawing = ("--contact-sheet", str(pictures[0]), "--plot", str(pictures[1]))
    assert run(monkeypatch, str(tmp_path / "colours"), "--import", str(table), *colours, *drawing) == 0
    for picture in pictures:
        with Image.open(picture) as image:
            assert np.asarray(image).min() < 255, "nothing was drawn"


def test_nothing_is_imported_if_the_picture_cannot_be_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Path
) -> None:
    folder = tmp_path / "colours"
    for picture in ("sheet.doc", str(table / "sheet.png")):
        assert run(monkeypatch, str(folder), "--import", str(table), "--contact-sheet", picture) == 2
        assert not folder.exists()


def test_a_colour_import_beside_grey_weights_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Path
) -> None:
    assert run(monkeypatch, str(tmp_path / "colours"), "--import", str(table)) == 0
    change = [f"data.population={tmp_path / 'colours'}"]
    experiment = load_experiment("glyphs-tiny", change)
    spec = step_spec(experiment, open_population(tmp_path / "colours"))
    with pytest.raises(ConfigurationError, match=r"images of 3 x 32 x 32 .*--set model.pretrained=none"):
        initial_weights(experiment, spec)
    fresh = load_experiment("glyphs-tiny", [*change, "model.pretrained=none"])
    assert initial_weights(fresh, spec)["conv1.weight"].shape[1] == 3


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("no-such-data",), 2, "neither a folder nor one of"),
        (("glyphs-tiny", "--plot", "partition.doc"), 2, "ends in .png"),
        (("glyphs-tiny", "--image-size", "8"), 2, "--import, which is not given"),
        (("glyphs-tiny", "--import", "table.csv"), 2, "which is taken"),
        (("somewhere", "--import", "no-table.csv"), 3, "does not exist"),
        ((".",), 3, "manifest.json"),
    ],
)
def test_each_mistake_has_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == code
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
