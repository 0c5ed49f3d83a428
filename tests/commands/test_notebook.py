"""docs/first_federation.ipynb runs from top to bottom, and leaves what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "first_federation.ipynb"


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_results() -> None:
    """A result that is kept is soon another one than the code gives."""
    document = json.loads(NOTEBOOK.read_text())
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    for cell in document["cells"]:
        assert cell["source"]
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
def test_every_cell_runs_in_order(tmp_path: Path) -> None:
    # As a kernel does: one cell after the other in one namespace, the same that spawned processes see as __main__.
    program = "import json, sys\nfor cell in json.loads(sys.argv[1]):\n    exec(compile(cell, 'cell', 'exec'), globals())\n"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(code_cells())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "the library is silent"
    lines = done.stdout.splitlines()
    assert lines[0] == "12 clients, 60 classes, 365 images"
    assert [line[:8] for line in lines if line.startswith("round")] == ["round 1:", "round 2:"] * 2
    assert any(line.startswith("images ") and "uint8 [b, 1, 32, 32]" in line for line in lines)
    folder = tmp_path / "first-federation"
    for picture in ("characters.png", "curve.png", "report-learning.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    for words in ("PosOnly", "FedSS 10", "onnxruntime"):
        assert words in page
