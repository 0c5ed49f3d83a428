"""The doctor finds what is missing, says how to get it, and answers where hardly anything is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import fedss.commands.doctor
from android_harness.bundles.debian_packages import PACKAGE_OF_PROGRAM
from android_harness.emulator.machine import EMULATOR_PROGRAMS
from fedss.commands.doctor import (
    CAPABILITIES,
    DEBIAN_PACKAGES,
    EMULATOR,
    NUM_FACES,
    PIP_PACKAGES,
    examine,
    satisfies,
)
from server_sim.data.glyphs.alphabet import FACES

ROOT = Path(__file__).parents[2]
PRESENT_IN_EVERY_DEBIAN = {"apt", "dpkg", "util-linux"}


def run_doctor(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(fedss.commands.doctor.command)
    return CliRunner().invoke(app, list(arguments))


def test_this_machine_can_simulate() -> None:
    result = run_doctor("--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert answer["capabilities"]["simulate"] == {"ready": True, "needs": [], "remedies": []}
    assert set(answer["capabilities"]) == set(CAPABILITIES)
    assert answer["machine"]["cores"] > 0


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.1", "==2.13.0", False),
        ("2.13", "==2.13.0", True),
        ("2.4.6", ">=2.1,<3", True),
        ("3.0.0", ">=2.1,<3", False),
        ("2.0.9", ">=2.1,<3", False),
        ("0.15", ">=0.9", True),
        ("10.0", ">=9", True),
    ],
)
def test_versions_are_compared_as_numbers(found: str, wanted: str, expected: bool) -> None:
    assert satisfies(found, wanted) is expected


def test_gaps_are_named_with_one_line_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(
        fedss.commands.doctor.PIP_PACKAGES, "export", {"no-such-package": "==1.0", "numpy": "==0.1"}
    )
    monkeypatch.setitem(fedss.commands.doctor.PIP_PACKAGES["export"], "onnxruntime-training-cpu", "==1.19.2")
    result = run_doctor("--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0, "exporting is not needed for simulating"
    export = answer["capabilities"]["export"]
    assert not export["ready"]
    assert {"no-such-package", "numpy", "g++"} <= set(export["needs"])
    assert "pip install 'no-such-package==1.0' 'numpy==0.1'" in export["remedies"]
    assert "apt-get install adb g++-aarch64-linux-gnu" in answer["capabilities"]["adb"]["remedies"][0]
    assert "no-such-package" in run_doctor().stdout


def test_without_what_simulating_needs_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fedss.commands.doctor.PIP_PACKAGES["simulate"], "torch", "==0.1")
    result = run_doctor("--json")
    assert result.exit_code == 5
    assert json.loads(result.stdout)["capabilities"]["simulate"]["needs"] == ["torch"]


def test_stock_onnxruntime_beside_the_training_build_is_a_fault(tmp_path: Path) -> None:
    metadata = tmp_path / "onnxruntime-1.31.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime\nVersion: 1.31.1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        finding = next(each for each in examine(tmp_path) if each.name == "stock onnxruntime")
    finally:
        sys.path.remove(str(tmp_path))
    assert (finding.ok, finding.found) == (False, "1.31.1")
    assert "pip uninstall -y onnxruntime" in finding.remedy[0]


def test_a_cache_that_cannot_be_a_folder_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run_doctor("--json", "--cache", str(tmp_path / "file" / "cache"))
    assert result.exit_code == 5
    assert json.loads(result.stdout)["capabilities"]["simulate"]["needs"] == ["cache folder"]


def test_it_runs_where_nothing_but_the_command_line_is_installed() -> None:
    program = """
import sys
for heavy in ("torch", "numpy", "matplotlib", "PIL", "pydantic", "executorch", "onnx", "onnxruntime"):
    sys.modules[heavy] = None  # importing it raises ImportError
from fedss.commands.doctor import examine, Path
assert examine(Path("."))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_doctor_wants_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    declared = dict(re.match(r"([\w-]+)(.*)", line).groups() for line in project["dependencies"])  # type: ignore[union-attr,misc]
    declared_extras = dict(re.match(r"([\w-]+)(.*)", line).groups() for line in extras)  # type: ignore[union-attr,misc]
    known = PIP_PACKAGES["simulate"] | PIP_PACKAGES["export"]
    assert {name: known.get(name) for name in declared} == declared
    assert {
        name: wanted for name, wanted in declared_extras.items() if name in known
    }.items() <= known.items()
    assert project["requires-python"] == fedss.commands.doctor.PYTHON


def test_the_doctor_knows_what_the_emulator_starts_and_the_glyphs_are_drawn_with() -> None:
    packages = {PACKAGE_OF_PROGRAM[program] for program in EMULATOR_PROGRAMS}
    assert packages - PRESENT_IN_EVERY_DEBIAN <= set(DEBIAN_PACKAGES[EMULATOR])
    assert len(FACES) == NUM_FACES
    assert all(fedss.commands.doctor.TEXT_FACES.fullmatch(face) for face in FACES)
